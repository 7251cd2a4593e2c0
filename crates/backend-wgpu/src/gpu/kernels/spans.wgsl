// The span table: which rows belong together. Its bindings are those of the kernel that includes it.

struct Span { first_row: u32, rows: u32, confirmed: u32, pending: u32, slot: u32, start: u32, ok: bool }

fn span_at(table: u32, number: u32, rows: u32, slots: u32, log_rows: u32, site: u32) -> Span {
  let at = table + number * 6u;
  var span = Span(spans[at], spans[at + 1u], spans[at + 2u], spans[at + 3u], spans[at + 4u], spans[at + 5u], false);
  span.ok = inside(site, span.slot, slots)
    && inside(site + 1u, span.pending, log_rows + 1u)
    && inside(site + 2u, span.confirmed, saturating_add(span.rows, 1u))
    && inside(site + 3u, span.rows - span.confirmed, log_rows + 1u)
    && inside(site + 4u, saturating_add(span.first_row, span.rows), rows + 1u);
  return span;
}

// The span that has a row, or one that is not ok.
fn span_of_row(row: u32, table: u32, count: u32, rows: u32, slots: u32, log_rows: u32, site: u32) -> Span {
  for (var i = 0u; i < count; i++) {
    let span = span_at(table, i, rows, slots, log_rows, site);
    if (span.ok && row >= span.first_row && row - span.first_row < span.rows) { return span; }
  }
  return Span(0u, 0u, 0u, 0u, 0u, 0u, false);
}
