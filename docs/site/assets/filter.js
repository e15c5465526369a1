// A field above the tables of operators that hides the rows in which a word does not stand. No network, no library.
document.addEventListener("DOMContentLoaded", () => {
  if (!/(operators|tosa-types|tosa-rules)\.html$/.test(location.pathname)) return
  const heading = document.querySelector("article h1")
  const field = document.createElement("input")
  field.className = "filter"
  field.type = "search"
  field.placeholder = "Show rows with these words, such as: softmax yes"
  field.setAttribute("aria-label", field.placeholder)
  heading.after(field)
  const rows = [...document.querySelectorAll("article tbody tr")].map((row) => [row, row.textContent.toLowerCase()])
  const show = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean)
    for (const [row, text] of rows) row.hidden = !words.every((word) => text.includes(word))
    for (const table of document.querySelectorAll("article table")) {
      table.hidden = words.length > 0 && ![...table.tBodies[0].rows].some((row) => !row.hidden)
    }
  }
  field.addEventListener("input", show)
})
