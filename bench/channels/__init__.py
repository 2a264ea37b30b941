"""KernelBench and TritonBench: a model's candidates in, a table beside the published one out.

    kernelbench, tritonbench   the two commands; run.py is what they share
    sources, journal           where candidates come from; how a run that was killed continues
    scores, metrics, report    from verdicts to figures, and to a table and plots
    answers, perf, compiled    comparing answers, timing TritonBench's operators, timing torch.compile
    compare, agreement         two runs side by side; the executor's times beside triton.testing.do_bench
    contamination, published   gold solutions in training data; published predictions, judged three ways
    eval_throughput            how many candidates a second the KernelBench command takes

A problem is a task of a benchmark. A sample is one answer to it, with a number from 0: the completion is the
text as it came, the candidate is the Python file in it. A problem is weak if answers that compute nothing
pass it; scores are given with weak problems ("all") and without ("fair").
"""
