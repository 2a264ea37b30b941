"""The page of runs in a headless Chromium: what it shows of 14,000 samples is what Python counts in them.

Skipped where playwright (pip install playwright) or a Chromium is missing.
"""

import json
import shutil
from collections import Counter

import pytest

from nanotriton import log
from nanotriton.browse import __main__ as browse
from nanotriton.rules.extract import extract_candidate
from tests.run_folders import many_samples, metrics, sample, write_run

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
SAMPLES = many_samples(14_000)
SAMPLES[13_999] = sample(
    55, 9, 7, "wrong_value", 13_999, task=HOSTILE, completion=HOSTILE, task_source=HOSTILE
)


def chromium(playwright):
    """A browser, or a skip: playwright's own, or one that is installed."""
    names = ("chromium", "chromium-browser", "google-chrome")
    installed = next(filter(None, map(shutil.which, names)), None)
    try:
        return playwright.chromium.launch(executable_path=installed)
    except sync_api.Error as error:
        pytest.skip(f"no Chromium: {str(error).splitlines()[0]}")


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = chromium(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """name -> address of a page."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        write_run(folder / "both" / f"base-s{seed}", metrics(8, seed), many_samples(64, seed), seed=seed)
    write_run(folder / "both" / "high-s0", metrics(8, 2, 0.1), many_samples(64, 2), lr=1e-3)
    write_run(folder / "many", metrics(55), SAMPLES)
    write_run(folder / "none", metrics(3))
    found = {}
    for name in ("both", "many", "none"):
        browse.main([str(folder / name), "--out", str(folder / f"{name}.html")])
        found[name] = (folder / f"{name}.html").as_uri()
    return found


@pytest.fixture
def opened(browser, pages):
    """opened(name, address, dark) shows a page; at the end of the test no error may have come."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    context.set_default_timeout(10_000)
    troubles, asked = [], []

    def show(name: str, address: str = "", scheme: str = "light"):
        tab = context.new_page()
        tab.emulate_media(color_scheme=scheme)
        tab.on("console", lambda message: troubles.append(message.text))
        tab.on("pageerror", lambda error: troubles.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(pages[name] + address)
        tab.wait_for_selector("#tabs button")
        return tab

    yield show
    context.close()
    assert troubles == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def told(tab) -> str:
    return tab.inner_text(".found")


def wait_told(tab, beginning: str) -> None:
    tab.wait_for_function(
        "text => document.querySelector('.found').innerText.startsWith(text)", arg=beginning
    )


def number(rows: list[dict]) -> str:
    return f"{sum(row['count'] for row in rows):,} samples"


def facets(tab, name: str) -> dict[str, int]:
    lines = tab.locator(f'[data-facet="{name}"] .facet').all_inner_texts()
    pairs = [line.split("\n") for line in lines]
    return {parts[0]: int(parts[-1].replace(",", "")) for parts in pairs}


# ---- 14,000 samples


def test_of_14000_samples_only_those_in_sight_are_made_and_read(opened):
    tab = opened("many", "#samples")
    tab.wait_for_selector(".detail .code")
    assert told(tab).startswith(number(SAMPLES))
    assert 10 < tab.locator(".list .row").count() < 60
    chunks = tab.locator("script[id^=chunk-]").count()
    assert chunks > 10
    assert tab.evaluate("performance.getEntriesByName('unpacked chunk').length") <= 2


def test_failures_come_first_and_the_last_row_can_be_reached(opened):
    tab = opened("many", "#samples")
    failed = [row for row in SAMPLES if row["verdict"]["status"] != "correct"]
    first = tab.locator(".row .status").all_inner_texts()
    assert first and "correct" not in first
    newest = max(row["step"] for row in failed)
    assert f"step {newest}" in tab.locator(".row").first.inner_text()
    tab.evaluate("document.querySelector('.list').scrollTop = 1e9")
    tab.wait_for_function(
        "() => [...document.querySelectorAll('.row .status')].every(node => node.innerText === 'correct')"
    )
    assert tab.locator(".list .row").count() < 60


def test_facets_count_what_python_counts(opened):
    tab = opened("many", "#samples")
    counts = Counter()
    for row in SAMPLES:
        counts[row["verdict"]["status"]] += row["count"]
    assert facets(tab, "status") == counts
    tab.locator('[data-facet="status"] .facet', has_text="compile_error").click()
    chosen = [row for row in SAMPLES if row["verdict"]["status"] == "compile_error"]
    wait_told(tab, number(chosen))
    assert facets(tab, "status") == counts  # the others can still be chosen
    reasons = facets(tab, "reason")
    assert list(reasons.values()) == [sum(row["count"] for row in chosen)]
    assert "NameError(… is not defined)" in next(iter(reasons))


def test_steps_tasks_and_rewards_are_chosen(opened):
    task = SAMPLES[600]["task"]  # of step 3
    tab = opened("many", f"#samples?from=3&to=4&task={task}")
    chosen = [row for row in SAMPLES if row["step"] in (3, 4) and row["task"] == task]
    wait_told(tab, number(chosen))
    tab.get_by_text("steps 3 to 4 ×").click()
    of_task = [row for row in SAMPLES if row["task"] == task]
    wait_told(tab, number(of_task))
    tab.fill(".bound >> nth=0", "0.5")
    wait_told(tab, number([row for row in of_task if row["reward"] >= 0.5]))
    assert "100% correct" in told(tab)
    picture = tab.locator(".steps svg").bounding_box()
    tab.mouse.click(picture["x"] + 1, picture["y"] + 20)  # the first step of all
    first = min(row["step"] for row in of_task if row["reward"])
    tab.wait_for_selector(f".chip:has-text('step {first}')")


def test_many_steps_share_a_bar(opened):
    tab = opened("none")
    binned = """steps => {
      const { low, wide, bars } = binned(new Map(steps.map((step) => [step, new Map([[step % 2, 3]])])));
      return [low, wide, bars.length, bars.map(barTotal).reduce((a, b) => a + b), bars.map(barTotal).slice(0, 3)];
    }"""
    assert tab.evaluate(binned, list(range(5, 25))) == [5, 1, 20, 60, [3, 3, 3]]
    assert tab.evaluate(binned, list(range(1, 1002))) == [1, 5, 201, 3003, [15, 15, 15]]
    assert tab.evaluate(binned, [1, 4, 5000]) == [1, 20, 250, 9, [6, 0, 0]]


def test_dragging_over_the_bars_chooses_steps(opened):
    tab = opened("many", "#samples")
    picture = tab.locator(".steps svg").bounding_box()
    steps = max(row["step"] for row in SAMPLES)
    middle = lambda step: picture["x"] + picture["width"] * (step - 0.5) / steps
    tab.mouse.move(middle(5), picture["y"] + 20)
    tab.mouse.down()
    tab.mouse.move(middle(9), picture["y"] + 20)
    tab.mouse.up()
    wait_told(tab, number([row for row in SAMPLES if 5 <= row["step"] <= 9]))
    tab.get_by_text("steps 5 to 9 ×").click()
    wait_told(tab, number(SAMPLES))


def test_searching_finds_what_python_finds(opened):
    tab = opened("many", "#samples")
    tab.fill(".search", "* 4217,")
    hits = [row for row in SAMPLES if "* 4217," in row["completion"]]
    assert len(hits) == 1
    wait_told(tab, number(hits).removesuffix("s" if hits[0]["count"] == 1 else ""))
    tab.wait_for_function("() => document.querySelector('.detail').innerText.includes('# number 4217')")
    assert tab.evaluate("[...CSS.highlights.get('match')].length") >= 1
    tab.fill(".search", "/not python.*unmatched/")  # messages are searched too, in either case
    hits = [row for row in SAMPLES if row["verdict"]["status"] == "syntax_error"]
    wait_told(tab, number(hits))
    tab.fill(".search", "/(/")
    tab.wait_for_selector(".search.wrong")
    tab.fill(".search", "nothing holds this")
    wait_told(tab, "no sample")
    tab.wait_for_selector("text=No sample passes these filters.")


def test_what_a_model_wrote_is_shown_and_never_run(opened):
    tab = opened("many", "#samples?query=window.hacked&from=55")
    wait_told(tab, number(SAMPLES[-1:]))
    tab.wait_for_function("text => document.querySelector('.detail').innerText.includes(text)", arg=HOSTILE)
    tab.click("[data-view=row]")
    tab.wait_for_selector("text=completion, as written")
    tab.click("[data-tab=tasks]")
    tab.fill(".tasks .search", "hacked")
    tab.wait_for_selector(".row.task >> text=window.hacked")
    assert tab.evaluate("window.hacked === undefined && !document.querySelector('img')")


# ---- one sample


def test_a_sample_is_shown_with_its_task_its_group_and_its_fields(opened):
    tab = opened("many", "#samples?sample=16")
    row = SAMPLES[16]
    tab.wait_for_selector(".detail .candidate .code")
    lines = tab.locator(".candidate .line").all_inner_texts()
    assert "\n".join(lines).strip() == extract_candidate(row["completion"]).strip()
    assert tab.locator(".py-keyword", has_text="import").count() >= 2
    assert tab.locator(".py-comment").first.inner_text() == "# number 16"
    assert tab.locator(".group .pill").count() == 8
    tab.click("[data-view=row]")
    tab.wait_for_selector("text=completion, as written")
    said = "\n".join(tab.locator(".detail .code").first.locator(".line").all_inner_texts())
    assert json.loads(said)["verdict"] == row["verdict"]


def test_two_samples_of_a_group_are_compared(opened):
    tab = opened("many", "#samples?sample=16")
    tab.wait_for_selector(".detail .code")
    tab.keyboard.press("d")
    tab.wait_for_selector(".diff")
    other = tab.locator(".diff .added").all_inner_texts()
    mine = tab.locator(".diff .removed").all_inner_texts()
    assert "    # number 16" in mine and other[0].startswith("    # number ")
    assert len(mine) == 2  # the comment and the factor, nothing else
    assert "".join(tab.locator(".removed .changed").all_inner_texts()) == "1616"
    tab.locator(".pill:not(.this)").first.click()
    tab.wait_for_selector(".pill.other")
    tab.keyboard.press("j")
    tab.wait_for_function("() => !location.hash.includes('sample=16')")


def test_the_page_takes_the_same_candidate_as_the_executor(opened):
    block = "```python\nclass ModelNew: pass\n```"
    cases = [
        block,
        f"a draft\n{block}\nbetter:\n```py\nimport x\nclass ModelNew(nn.Module):\n    y = 1\n```\nend",
        f"<think>{block}",
        f"<think>{block}</think>\nno",
        f"<think>{block}</think>\n~~~~\ndef ModelNew(): pass\n~~~~",
        f"reasoning</think>{block}",
        "```cpp\nclass ModelNew {}\n```",
        "```python\nModelNew = Other",
        "```python\nx = 1\n```",
        "  ```python\n  class ModelNew:\n    pass\n  ```",
        "```\r\nclass ModelNew:\r\n    pass\r\n```",
        "````\nclass ModelNew:\n    '''\n```\n    '''\n````",
        "```python\nclass ModelNew(\n```",
        "",
    ]
    tab = opened("none")
    found = [tab.evaluate("text => candidateOf(text)", case) for case in cases]
    assert [text and text.strip("\n") for text in found] == [
        text and text.strip("\n") for text in map(extract_candidate, cases)
    ]


def test_a_diff_of_long_texts_folds_what_is_equal(opened):
    tab = opened("none")
    left = [f"line {n}" for n in range(60)]
    right = [*left[:30], "new", *left[30:50], *left[51:]]
    rows = tab.evaluate("([a, b]) => diffRows(a, b)", [left, right])
    assert [row for row in rows if not row["same"]] == [
        {"left": None, "right": 30, "same": False},
        {"left": 50, "right": None, "same": False},
    ]
    assert [(row["left"], row["right"]) for row in rows if row["same"]] == [
        (n, n + (n >= 30)) if n < 50 else (n, n) for n in range(60) if n != 50
    ]
    folds = "([a, b]) => [...diffView(a, b).querySelectorAll('.folded')].map(node => node.innerText)"
    texts = ["\n".join(left), "\n".join(right)]
    assert tab.evaluate(folds, texts) == ["⋯ 26 equal lines", "⋯ 12 equal lines"]


# ---- curves and settings


def test_seeds_are_drawn_as_one_curve_with_its_spread(opened):
    tab = opened("both")
    names = tab.locator(".overview tbody tr").all_inner_texts()
    assert len(names) == 2 and "base-s0 (seed 0), base-s1 (seed 1)" in names[0] and "lr=0.001" in names[1]
    card = tab.locator(".card", has_text="mean over the samples of a step")
    assert card.locator(".mean").count() == 2 and card.locator(".band").count() == 1
    tab.get_by_label("each seed by itself").check()
    tab.wait_for_function("() => document.querySelectorAll('.card .band').length === 0")
    assert card.locator(".mean").count() == 3
    tab.locator(".overview input").first.uncheck()
    tab.wait_for_function("() => document.querySelectorAll('.legend').length === 1")
    assert card.locator(".mean").count() == 1


def test_a_curve_tells_its_values_and_leads_to_its_samples(opened):
    tab = opened("both")
    chart = tab.locator(".card", has_text="mean over the samples of a step").locator("svg")
    box = chart.bounding_box()
    tab.mouse.move(box["x"] + box["width"] * 0.97, box["y"] + 50)
    tab.wait_for_selector("#tooltip:has-text('step 8')")
    rewards = [[r["reward"] for r in metrics(8, seed) if r["stage"] == "grpo"] for seed in (0, 1)]
    last = [log.smooth(values, 0.6)[-1] for values in rewards]
    assert f"base {sum(last) / 2:.3f} ({min(last):.3f} to {max(last):.3f})" in tab.inner_text("#tooltip")
    chart.click(position={"x": box["width"] * 0.14, "y": 50})
    tab.wait_for_selector(".samples .chip:has-text('step 1')")


def test_curves_are_smoothed_as_in_curves_png(opened):
    tab = opened("none")
    values = [1.0, 5.0, 2.0, 8.0]
    assert tab.evaluate("values => smoothed(values, 0.9)", values) == pytest.approx(log.smooth(values, 0.9))


def test_settings_are_compared(opened):
    tab = opened("both", "#settings")
    heads = [text.strip() for text in tab.locator(".values >> nth=0").locator("thead th").all_inner_texts()]
    assert heads == ["", "base-s0", "base-s1", "high-s0"]
    rows = tab.locator(".values >> nth=0").locator("tbody tr")
    assert [text.split("\t")[0] for text in rows.all_inner_texts()] == ["seed", "lr"]
    tab.get_by_label("only what differs").uncheck()
    tab.wait_for_selector("text=dapo")


def test_a_run_without_samples_has_its_curves(opened):
    tab = opened("none", "#samples")
    assert [text.split()[0] for text in tab.locator("#tabs button").all_inner_texts()] == [
        "curves",
        "settings",
    ]
    assert tab.locator(".card").count() >= 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_follow_the_system_or_the_user(opened, scheme):
    tab = opened("both", scheme=scheme)
    dark = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0] < 128"
    assert tab.evaluate(dark) == (scheme == "dark")
    for _ in range(2):  # auto, light, dark
        tab.click("#theme")
    assert tab.evaluate(dark)


def test_every_tab_opens_on_a_narrow_window(opened):
    tab = opened("both")
    tab.set_viewport_size({"width": 700, "height": 600})
    for name in ("samples", "tasks", "settings", "curves"):
        tab.click(f"[data-tab={name}]")
        tab.wait_for_selector("#view > *")


def test_a_curve_that_is_flat_but_for_rounding_has_an_axis(opened):
    tab = opened("none")
    for values in ([100.0, 100.00000000000001], [-3.0, -3.0], [0.0, 0.0], [1e-30, 2e-30], [0.0, 1e30]):
        chart = "values => lineChart([{name: 'x', color: 'red', lines: [[[1, 2], values]]}]).outerHTML.length"
        assert tab.evaluate(chart, values) < 5000
