// The start: unpack what the page knows, and show the tab that the address names.

const THEMES = ["auto", "light", "dark"];

async function start() {
  const index = JSON.parse(await unpack(document.getElementById("index").textContent));
  const page = {
    runs: index.runs,
    groups: index.groups,
    samples: new Samples(index.samples, index.unscored),
    remember(tab, words = new URLSearchParams()) {
      const text = words.toString();
      history.replaceState(null, "", `#${tab}${text ? `?${text}` : ""}`);
    },
    // Samples of the training split with this filter, and no other.
    lookAt(filter) {
      tabs.samples.made ??= tabs.samples.make();
      const samples = tabs.samples.made;
      const split = filter.task === undefined ? samples.filter.split : new Set();
      samples.filter = { ...emptyFilter(), split, ...filter };
      turnTo("samples");
      samples.refresh();
    },
  };
  const tabs = {
    curves: { node: () => curvesTab(page) },
    samples: { make: () => new SamplesTab(page), node: (made) => made.node, count: page.samples.columns.count.reduce((a, b) => a + b, 0) },
    tasks: { node: () => tasksTab(page), count: page.samples.tasks.length },
    settings: { node: () => settingsTab(page) },
  };
  if (!page.samples.size) delete tabs.samples, delete tabs.tasks;
  let current = "";

  function turnTo(name) {
    current = name;
    const tab = tabs[name];
    if (tab.make) tab.made ??= tab.make();
    document.getElementById("view").replaceChildren(tab.node(tab.made));
    document.querySelectorAll("#tabs button").forEach((b) => b.setAttribute("aria-selected", String(b.dataset.tab === name)));
    tooltip.hide();
  }

  function follow(address) {
    const [name, text] = address.replace(/^#/, "").split("?");
    const tab = name in tabs ? name : "curves";
    turnTo(tab);
    if (tab !== "samples") return;
    const words = new URLSearchParams(text);
    const { made } = tabs.samples;
    if (text) made.filter = filterFrom(page.samples, words);
    made.refresh(words.has("sample") ? +words.get("sample") : null);
  }

  for (const [name, tab] of Object.entries(tabs)) {
    const go = () => {
      page.remember(name);
      turnTo(name);
      if (name === "samples") tab.made.refresh();
    };
    const count = tab.count ? el("span", { class: "muted" }, ` ${tab.count.toLocaleString("en-US")}`) : "";
    document.getElementById("tabs").append(el("button", { "data-tab": name, role: "tab", onclick: go }, name, count));
  }
  document.getElementById("made").textContent = `written ${index.made}`;
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea");
    if (event.key === "Escape" && typing) {
      event.preventDefault(); // the browser would empty the field without telling
      typing.blur();
    }
    if (typing || event.ctrlKey || event.metaKey || event.altKey || current !== "samples") return;
    if (tabs.samples.made.pressed(event.key)) event.preventDefault();
  });
  addEventListener("hashchange", () => follow(location.hash));
  follow(location.hash);
}

// Light and dark follow the system until the user chooses.
function themes() {
  const button = document.getElementById("theme");
  let theme = "auto";
  const set = (name) => {
    theme = name;
    document.documentElement.dataset.theme = name;
    button.textContent = { auto: "◐ auto", light: "☀ light", dark: "☾ dark" }[name];
  };
  button.addEventListener("click", () => set(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]));
  set("auto");
}

themes();
start().catch((error) => {
  document.getElementById("view").replaceChildren(el("p", { class: "note" }, `This page can't be shown: ${error.message}`));
  throw error;
});
