// A colour for each status of nanotriton/verdict.py, the same in every chart and list. Green is right,
// orange and yellow are wrong answers, red is Python that does not run, blues are errors of kernels,
// magenta is memory, purple is what the rules refuse, grey says nothing of the candidate.
const STATUS_COLOR = {
  correct: "#2f9e5b",
  wrong_value: "#e8883a",
  wrong_shape: "#d9b62f",
  wrong_dtype: "#a8892a",
  not_finite: "#b5651d",
  input_modified: "#a67c52",
  nondeterministic: "#e6b27e",
  syntax_error: "#d64550",
  import_error: "#e88a9a",
  no_code: "#8794ab",
  runtime_error: "#3b7dd8",
  compile_error: "#17a2ba",
  out_of_resources: "#69c6d8",
  timeout: "#5b4bc4",
  output_limit: "#9db2d0",
  out_of_bounds: "#c2338b",
  illegal_memory: "#8c1c5c",
  memory_limit: "#dd7db8",
  crashed: "#7a2230",
  rule_violation: "#8e5bd0",
  too_fast: "#bf86e6",
  infra_error: "#6b7078",
  unsupported: "#9a9fa8",
  weak_task: "#bcc1c9",
};

// Of settings (groups of runs), in the order in which they come.
const LINE_COLORS = ["#3b7dd8", "#e8883a", "#2f9e5b", "#c2338b", "#8e5bd0", "#17a2ba", "#d9b62f", "#7a5c3e"];

function statusColor(status) {
  return STATUS_COLOR[status] ?? "#9a9fa8";
}

function lineColor(number) {
  return LINE_COLORS[number % LINE_COLORS.length];
}

function statusBadge(status) {
  return el("span", { class: "badge" }, swatch(statusColor(status)), status);
}
