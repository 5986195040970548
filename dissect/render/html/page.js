"use strict";
for (const table of document.querySelectorAll("table.sorts")) {
  const heads = table.tHead.rows[0].cells;
  for (const head of heads) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const column = head.cellIndex;
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => {
        const cell = row.cells[column];
        return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
      };
      const order = (one, other) => {
        const [a, b] = [key(one), key(other)];
        if (typeof a === "number" && typeof b === "number") return a - b;
        return String(a).localeCompare(String(b), undefined, { numeric: true });
      };
      const rows = [...table.tBodies[0].rows].sort(order);
      table.tBodies[0].append(...(down ? rows.reverse() : rows));
    });
  }
}
