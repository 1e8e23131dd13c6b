// The report's tables and matrices: sorting, searching, and drawing a cross-attention matrix when it is opened.
// Plain DOM (WHATWG); texts are set as texts, never as markup.
"use strict";

function make(kind, text = "", parent = null) {
  const element = document.createElement(kind);
  element.textContent = text;
  parent?.append(element);
  return element;
}

// Sorting: a click on a column's button, again for the other way round.
function compare(first, second) {
  const numbers = [Number(first), Number(second)];
  return numbers.some(Number.isNaN) ? first.localeCompare(second) : numbers[0] - numbers[1];
}

function sortBy(table, column, down) {
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [row.cells[column].dataset.value, row]);
  rows.sort((first, second) => (down ? -1 : 1) * compare(first[0], second[0]));
  body.append(...rows.map(([, row]) => row));
  markLater(table);
}

// The first rows are enough to begin with; all of them are there for a search, for print, and for the button.
const FIRST = 10;

function markLater(table) {
  [...table.tBodies[0].rows].forEach((row, i) => row.classList.toggle("later", i >= FIRST));
}

for (const button of document.querySelectorAll(".more button")) {
  const table = document.getElementById(button.dataset.for);
  markLater(table);
  button.parentElement.hidden = table.tBodies[0].rows.length <= FIRST;
  button.addEventListener("click", () => {
    table.classList.add("all");
    button.parentElement.hidden = true;
  });
}

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      sortBy(table, column, down);
    });
  });
}

// Searching: rows stay in which every word typed stands.
for (const input of document.querySelectorAll("input[type=search]")) {
  const table = document.getElementById(input.dataset.for);
  const rows = [...table.tBodies[0].rows];
  const status = input.closest(".tools").querySelector(".status");
  const search = () => {
    const wanted = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) row.hidden = !wanted.every((word) => row.dataset.text.includes(word));
    table.classList.toggle("searching", wanted.length > 0);
    const left = rows.filter((row) => !row.hidden).length;
    status.textContent = wanted.length ? `${left} of ${rows.length} rows` : "";
  };
  input.addEventListener("input", search);
  search(); // a browser that comes back to the page may have kept what was typed
}

// Matrices.
const matrices = Object.assign({}, ...[...document.querySelectorAll("script.matrices")].map((data) => JSON.parse(data.textContent)));

function drawMatrix({ rows, columns, cells }, place) {
  const scroll = make("div");
  scroll.className = "scroll";
  const table = make("table", "", scroll);
  table.className = "attention";
  const head = make("tr", "", make("thead", "", table));
  make("td", "", head);
  for (const word of columns) make("span", word, make("th", "", head));
  const body = make("tbody", "", table);
  const said = make("p", "Per cent of each row; point at a cell, or tap it, to read it.");
  // Coloured as words are: by what is more than an even share.
  const even = 100 / columns.length;
  const full = Math.max(2 * even, ...cells.flat());
  said.className = "quiet";
  rows.forEach((word, i) => {
    const row = make("tr", "", body);
    make("th", word, row);
    columns.forEach((other, j) => {
      const cell = make("td", cells[i][j], row);
      cell.className = "heat";
      cell.style.setProperty("--w", Math.max(0, (100 * (cells[i][j] - even)) / (full - even)));
      const tell = () => (said.textContent = `“${word}” takes ${cells[i][j]} % of “${other}”`);
      cell.addEventListener("pointerover", tell);
      cell.addEventListener("click", tell);
    });
  });
  place.replaceChildren(scroll, said);
}

for (const details of document.querySelectorAll("details.matrix")) {
  details.addEventListener("toggle", () => {
    if (!details.open || details.children.length > 1) return;
    const found = matrices[details.dataset.key];
    const place = make("div");
    if (found.length > 1) {
      const select = make("select", "", details);
      select.setAttribute("aria-label", "layer and direction");
      found.forEach((matrix) => make("option", matrix.title, select));
      select.addEventListener("change", () => drawMatrix(found[select.selectedIndex], place));
    } else {
      make("p", found[0].title, details);
    }
    details.append(place);
    drawMatrix(found[0], place);
  });
}
