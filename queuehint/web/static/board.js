/* What pages do besides htmx: keys in the tree, selected rows, copied text, the mark of the stream. All of it works
   without: links and forms stand below. */
(() => {
  "use strict";
  document.documentElement.classList.add("js");
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // --- the tree: arrows move, right opens, left closes ---------------------------------------------------------------

  const level = (row) => Number(row.getAttribute("aria-level"));
  const rows = (grid) => all("tbody tr", grid).filter((row) => !row.hidden);

  function below(row) {
    const found = [];
    for (let next = row.nextElementSibling; next && level(next) > level(row); next = next.nextElementSibling) found.push(next);
    return found;
  }

  function setOpen(row, open) {
    row.setAttribute("aria-expanded", String(open));
    let closedAt = open ? Infinity : level(row);
    for (const each of below(row)) {
      if (level(each) <= closedAt) closedAt = Infinity;
      each.hidden = level(each) > closedAt;
      if (!each.hidden && each.getAttribute("aria-expanded") === "false") closedAt = level(each);
    }
  }

  function focusRow(row) {
    if (!row) return;
    for (const each of all("tbody tr", row.closest("table"))) each.tabIndex = -1;
    row.tabIndex = 0;
    row.focus();
  }

  function prepareTree() {
    for (const grid of all(".treegrid")) {
      const found = rows(grid);
      if (found.length && !found.some((row) => row.tabIndex === 0)) found[0].tabIndex = 0;
      for (const link of all("tbody a", grid)) link.tabIndex = -1;
    }
  }

  document.addEventListener("keydown", (event) => {
    const row = event.target.closest?.(".treegrid tbody tr");
    if (!row || event.target !== row || event.altKey || event.ctrlKey || event.metaKey) return;
    const shown = rows(row.closest("table"));
    const at = shown.indexOf(row);
    const state = row.getAttribute("aria-expanded");
    const act = {
      ArrowDown: () => focusRow(shown[at + 1]),
      ArrowUp: () => focusRow(shown[at - 1]),
      Home: () => focusRow(shown[0]),
      End: () => focusRow(shown[shown.length - 1]),
      Enter: () => { location.href = row.dataset.url; },
      ArrowRight: () => {
        if (state === "false") setOpen(row, true);
        else if (state === "true") focusRow(shown[at + 1]);
        else location.href = row.dataset.url;
      },
      ArrowLeft: () => {
        if (state === "true") { setOpen(row, false); return; }
        for (let above = row.previousElementSibling; above; above = above.previousElementSibling) {
          if (level(above) < level(row)) { focusRow(above); return; }
        }
        const crumbs = all(".crumbs a");
        if (crumbs.length > 1) location.href = crumbs[crumbs.length - 2].href;
      },
    }[event.key];
    if (act) { event.preventDefault(); act(); }
  });

  document.addEventListener("click", (event) => {
    const row = event.target.closest?.(".treegrid tr[aria-expanded]");
    if (row && event.target.classList.contains("twig")) setOpen(row, row.getAttribute("aria-expanded") !== "true");
    const copy = event.target.closest?.("[data-copy]");
    if (copy) {
      const label = copy.textContent;
      navigator.clipboard?.writeText(copy.dataset.copy).then(() => {
        copy.textContent = "Copied";
        setTimeout(() => { copy.textContent = label; }, 1500);
      });
    }
  });

  // --- selected rows -------------------------------------------------------------------------------------------------

  function countPicked() {
    const boxes = all("tbody input[name=id]");
    const count = boxes.filter((box) => box.checked).length;
    for (const button of all("[data-picked]")) button.disabled = !count;
    const said = document.getElementById("picked");
    if (said) said.textContent = count ? `${count} selected` : "";
    const every = document.querySelector("[data-all]");
    if (every) { every.checked = count > 0 && count === boxes.length; every.indeterminate = count > 0 && count < boxes.length; }
  }

  document.addEventListener("change", (event) => {
    if (event.target.matches?.("[data-all]")) for (const box of all("tbody input[name=id]")) box.checked = event.target.checked;
    countPicked();
  });

  // --- what was swapped in ---------------------------------------------------------------------------------------------

  function settle() { prepareTree(); countPicked(); }

  document.addEventListener("htmx-after-swap", (event) => {
    settle();
    const target = event.detail?.ctx?.target;
    if (target?.id !== "notice") return;
    const first = target.querySelector("button:not([disabled]), a") || target;
    target.scrollIntoView({ block: "nearest" });
    first.focus?.();
  });

  // --- the mark of the stream: with metaCharacter "-" the events of htmx have "-" for ":" ----------------------------

  const live = document.getElementById("live");
  function mark(on) {
    if (!live) return;
    live.classList.toggle("is-on", on);
    live.classList.toggle("is-off", !on);
    live.textContent = on ? "live" : "reconnecting";
    live.removeAttribute("title");
  }
  // All streams of the board are in use: the page asks for itself every 15 s, and for a stream once a minute.
  function markFull() {
    mark(false);
    live.textContent = "every 15 s";
    live.title = "All streams of the board are in use.";
  }
  document.addEventListener("htmx-sse-after-connection", () => mark(true));
  document.addEventListener("htmx-sse-error", (event) => event.detail?.status === 503 ? markFull() : mark(false));
  document.addEventListener("htmx-sse-close", () => mark(false));
  document.addEventListener("htmx-after-request", (event) => {
    const ctx = event.detail?.ctx;
    if (!live || ctx?.sourceElement !== live || ctx.response?.raw?.status !== 503) return;
    markFull();
    setTimeout(() => window.htmx.trigger(live, "again"), 60000);
  });
  document.addEventListener("htmx-error", (event) => {
    if (event.detail?.ctx?.sourceElement?.id !== "page") return;
    const away = document.getElementById("away");
    if (away && !away.firstChild) {
      const said = document.createElement("div");
      said.className = "notice warn";
      said.textContent = "The board does not answer. This page shows what was there before.";
      away.append(said);
    }
  });

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", settle);
  else settle();
})();
