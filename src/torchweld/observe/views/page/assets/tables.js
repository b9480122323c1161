// Tables: a click on a heading sorts, a search and choices filter. State is in the page: aria-sort, hidden rows.

function sortValue(row, column) {
  const cell = row.cells[column];
  const value = cell.dataset.v ?? cell.textContent.trim();
  return value === "" ? null : isNaN(value) ? value.toLowerCase() : Number(value);
}

// What is not known comes last, whichever way.
function compare(a, b, sign) {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return sign * (typeof a === "number" ? a - b : a.localeCompare(b));
}

function sortBy(heading) {
  const table = heading.closest("table"), column = heading.cellIndex;
  const first = heading.classList.contains("n") ? "descending" : "ascending";
  const other = first === "descending" ? "ascending" : "descending";
  const order = heading.getAttribute("aria-sort") === first ? other : first;
  for (const each of heading.parentNode.cells) each.setAttribute("aria-sort", "none");
  heading.setAttribute("aria-sort", order);
  const body = table.tBodies[0], sign = order === "ascending" ? 1 : -1;
  const rows = Array.from(body.rows, row => [sortValue(row, column), row]);
  rows.sort((a, b) => compare(a[0], b[0], sign));
  body.append(...rows.map(([, row]) => row));
}

function filter(id) {
  const table = document.getElementById(id);
  const controls = Array.from(document.querySelectorAll(`[data-for="${id}"]`));
  const words = controls.filter(c => c.type === "search").flatMap(c => c.value.toLowerCase().split(/\s+/)).filter(Boolean);
  const chosen = controls.filter(c => c.dataset.column && c.value);
  let shown = 0;
  for (const row of table.tBodies[0].rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every(word => text.includes(word))
      || !chosen.every(c => row.cells[c.dataset.column].textContent.trim() === c.value);
    shown += !row.hidden;
  }
  const count = document.querySelector(`[data-count="${id}"]`);
  if (count) count.textContent = `${shown} of ${table.tBodies[0].rows.length} rows`;
}

// On a narrow screen a row is a list: each cell says its column's name.
function nameCells(table) {
  const names = Array.from(table.tHead.rows[0].cells, cell => cell.textContent.trim());
  for (const row of table.tBodies[0].rows)
    for (const cell of row.cells) cell.dataset.label = names[cell.cellIndex];
}

function startTables() {
  for (const table of document.querySelectorAll("table.stack")) nameCells(table);
  for (const button of document.querySelectorAll("table.sortable th button"))
    button.addEventListener("click", () => sortBy(button.closest("th")));
  for (const control of document.querySelectorAll("[data-for]"))
    control.addEventListener("input", () => filter(control.dataset.for));
  for (const table of document.querySelectorAll("table.sortable")) filter(table.id);
}
