// The fourth tab: the settings of all runs side by side, those that differ first, and what the runs ended
// with.

function settingsTab(page) {
  const only = el("input", { type: "checkbox", checked: page.runs.length > 1 });
  const body = el("div");
  const draw = () =>
    body.replaceChildren(
      valuesTable(page, "settings", (run) => run.settings, only.checked),
      valuesTable(page, "what ran", (run) => run.ran, only.checked),
      valuesTable(page, "summary", (run) => run.summary, only.checked),
    );
  only.addEventListener("change", draw);
  draw();
  const choice =
    page.runs.length > 1 && el("div", { class: "controls" }, el("label", {}, only, " only what differs"));
  return el("div", { class: "page" }, choice, body);
}

function valuesTable(page, title, of, onlyUnlike) {
  const keys = [...new Set(page.runs.flatMap((run) => Object.keys(of(run))))];
  const written = (run, key) =>
    key in of(run) ? (of(run)[key] === "" ? "(empty)" : show(of(run)[key])) : "–";
  const unlike = (key) => new Set(page.runs.map((run) => JSON.stringify(of(run)[key]))).size > 1;
  const shown = keys.filter((key) => !onlyUnlike || unlike(key)).sort((a, b) => unlike(b) - unlike(a));
  if (!keys.length) return "";
  const heads = page.runs.map((run) => el("th", {}, swatch(lineColor(run.group)), run.name));
  const rows = shown.map((key) =>
    el(
      "tr",
      { class: unlike(key) && !onlyUnlike && page.runs.length > 1 ? "unlike" : null },
      el("th", {}, key),
      ...page.runs.map((run) => el("td", {}, written(run, key))),
    ),
  );
  const none = el("tr", {}, el("td", { colspan: page.runs.length + 1, class: "muted" }, "Nothing differs."));
  return el(
    "div",
    { class: "wide" },
    el("h2", {}, title),
    el(
      "table",
      { class: "table values" },
      el("thead", {}, el("tr", {}, el("th"), ...heads)),
      el("tbody", {}, ...(rows.length ? rows : [none])),
    ),
  );
}
