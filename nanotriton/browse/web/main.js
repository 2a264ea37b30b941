// The start: unpack what the page knows, and show the tab that the address names.

const THEMES = { auto: "◐ auto", light: "☀ light", dark: "☾ dark" };

// The tabs, and the part of the address behind the #, which names one: #samples?status=wrong_value.
class Tabs {
  constructor(page) {
    this.page = page;
    const { size, columns, tasks } = page.samples;
    const written = columns.count.reduce((a, b) => a + b, 0);
    this.all = {
      curves: { make: () => curvesTab(page) },
      ...(size && { samples: { make: () => this.samples().node, count: written } }),
      ...(size && { tasks: { make: () => tasksTab(page), count: tasks.length } }),
      settings: { make: () => settingsTab(page) },
    };
    const buttons = Object.entries(this.all).map(([name, { count }]) => {
      const many = count ? el("span", { class: "muted" }, ` ${show(count)}`) : "";
      return el("button", { "data-tab": name, role: "tab", onclick: () => this.open(name) }, name, many);
    });
    document.getElementById("tabs").append(...buttons);
  }

  // The tab of samples keeps its filter while others are shown.
  samples() {
    return (this.kept ??= new SamplesTab(this.page));
  }

  turnTo(name) {
    this.current = name;
    document.getElementById("view").replaceChildren(this.all[name].make());
    for (const button of document.querySelectorAll("#tabs button")) {
      button.setAttribute("aria-selected", String(button.dataset.tab === name));
    }
    tooltip.hide();
  }

  open(name) {
    remember(name);
    this.turnTo(name);
    if (name === "samples") this.samples().refresh();
  }

  follow(address) {
    const [name, text] = address.replace(/^#/, "").split("?");
    this.turnTo(name in this.all ? name : "curves");
    if (this.current !== "samples") return;
    const words = new URLSearchParams(text);
    if (text) this.samples().filter = filterFrom(this.page.samples, words);
    this.samples().refresh(words.has("sample") ? +words.get("sample") : null);
  }

  // Samples with this filter and no other; of the split that was chosen, unless a task is asked for.
  lookAt(filter) {
    const samples = this.samples();
    const split = filter.task === undefined ? samples.filter.split : new Set();
    samples.filter = { ...emptyFilter(), split, ...filter };
    this.turnTo("samples");
    samples.refresh();
  }

  pressed(event) {
    const typing = event.target.closest("input, select, textarea");
    if (event.key === "Escape" && typing) {
      event.preventDefault(); // the browser would empty the field without telling
      typing.blur();
    }
    if (typing || event.ctrlKey || event.metaKey || event.altKey || this.current !== "samples") return;
    if (this.samples().pressed(event.key)) event.preventDefault();
  }
}

function remember(tab, words = new URLSearchParams()) {
  const text = words.toString();
  history.replaceState(null, "", `#${tab}${text ? `?${text}` : ""}`);
}

async function start() {
  const index = JSON.parse(await unpack(document.getElementById("index").textContent));
  const samples = new Samples(index.samples, index.unscored);
  const page = { runs: index.runs, groups: index.groups, samples, lookAt: (filter) => tabs.lookAt(filter) };
  const tabs = new Tabs(page);
  document.getElementById("made").textContent = `written ${index.made}`;
  document.addEventListener("keydown", (event) => tabs.pressed(event));
  addEventListener("hashchange", () => tabs.follow(location.hash));
  tabs.follow(location.hash);
}

// Light and dark follow the system until the user chooses.
function themes() {
  const button = document.getElementById("theme");
  const names = Object.keys(THEMES);
  let theme = "auto";
  const set = (name) => {
    theme = name;
    document.documentElement.dataset.theme = name;
    button.textContent = THEMES[name];
  };
  button.addEventListener("click", () => set(names[(names.indexOf(theme) + 1) % names.length]));
  set("auto");
}

themes();
start().catch((error) => {
  const told = el("p", { class: "note" }, `This page can't be shown: ${error.message}`);
  document.getElementById("view").replaceChildren(told);
  throw error;
});
