// The third tab: one line for each task, the hardest first.

const TASK_COLUMNS = [
  ["task", "task", (t) => t.name],
  ["samples", "samples", (t) => t.samples],
  ["correct", "correct", (t) => t.correct / t.samples],
  ["reward", "mean reward", (t) => (t.scored ? t.reward / t.scored : NaN)],
  ["best", "best reward", (t) => t.best],
  ["failure", "most frequent failure", (t) => t.failure],
];

function tasksOf(samples) {
  const { columns } = samples;
  const tasks = samples.tasks.map((name, number) => ({
    name,
    number,
    samples: 0,
    correct: 0,
    scored: 0,
    reward: 0,
    best: -Infinity,
    reasons: new Map(),
  }));
  for (let i = 0; i < samples.size; i++) {
    const task = tasks[columns.task[i]];
    const count = columns.count[i];
    task.samples += count;
    if (samples.correct[columns.status[i]]) task.correct += count;
    else task.reasons.set(columns.reason[i], (task.reasons.get(columns.reason[i]) ?? 0) + count);
    if (columns.reward[i] === null) continue;
    task.scored += count;
    task.reward += count * columns.reward[i];
    task.best = Math.max(task.best, columns.reward[i]);
  }
  for (const task of tasks) {
    const [reason] = [...task.reasons].sort((a, b) => b[1] - a[1])[0] ?? [];
    task.failure = reason === undefined ? "" : samples.reasons[reason];
  }
  return tasks;
}

function tasksTab(page) {
  const tasks = tasksOf(page.samples);
  let [by, down] = ["correct", false];
  const search = el("input", { type: "search", class: "search", placeholder: "search tasks" });
  const list = new VirtualList({
    height: 34,
    row: (task) => el("div", { class: "row task" }, ...TASK_COLUMNS.map((column) => taskCell(task, column))),
    picked: (task) => page.lookAt({ task: task.number }),
  });
  const heads = TASK_COLUMNS.map(([key, title]) =>
    el(
      "button",
      { class: `cell ${key}`, onclick: () => ([by, down] = [key, by === key ? !down : false]) && draw() },
      title,
    ),
  );
  const told = el("span", { class: "muted" });
  const draw = () => {
    const value = TASK_COLUMNS.find(([key]) => key === by)[2];
    const order = (a, b) => {
      const [x, y] = [value(a), value(b)];
      return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1) || b.samples - a.samples;
    };
    const shown = tasks
      .filter((task) => task.name.toLowerCase().includes(search.value.toLowerCase()))
      .sort(order);
    heads.forEach((head, k) =>
      head.setAttribute("data-sorted", TASK_COLUMNS[k][0] === by ? (down ? "down" : "up") : ""),
    );
    const solved = shown.filter((task) => task.correct).length;
    told.textContent = `${plural(shown.length, "task")}, ${show(solved)} solved at least once`;
    list.show(shown);
  };
  search.addEventListener("input", draw);
  draw();
  return el(
    "div",
    { class: "tasks" },
    el("div", { class: "bar" }, search, told),
    el("div", { class: "heads" }, ...heads),
    list.node,
  );
}

function taskCell(task, [key, , value]) {
  const number = value(task);
  if (key === "correct") {
    const bar = el("i", { class: "share", style: { width: `${100 * number}%` } });
    return el("span", { class: "cell correct" }, el("span", { class: "track" }, bar), percent(number));
  }
  return el(
    "span",
    { class: `cell ${key}`, title: String(number) },
    Number.isNaN(number) || number === -Infinity ? "–" : show(number),
  );
}
