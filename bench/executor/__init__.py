"""The executor, measured.

exploits        which exploits does it pay, and which honest kernels does it refuse?
weak_tasks      can a folder of tasks tell right from wrong at all?
recordability   how much real code can be recorded, and does it replay to what a plain run gives?
throughput      how many candidates does it judge a second, and where does the time go?
rules           how long do the rules take, before and after a candidate runs?
timing          does its clock repeat, and can it be cheated?
soak            does every candidate get its own verdict while the executor's processes are killed?
"""
