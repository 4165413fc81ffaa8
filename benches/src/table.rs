//! Text in columns.

/// Rows below their heads; the first column to the left, all others to the right.
pub(crate) fn columns(heads: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = heads.iter().map(|h| h.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for (n, (cell, width)) in cells.zip(&widths).enumerate() {
            text.push_str(&match n {
                0 => format!("{cell:<width$}"),
                _ => format!("  {cell:>width$}"),
            });
        }
        text.truncate(text.trim_end().len());
        text
    };
    let mut lines = vec![line(&mut heads.iter().copied())];
    lines.extend(rows.iter().map(|row| line(&mut row.iter().map(String::as_str))));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["a".to_owned(), "1".into()], vec!["longer".into(), "100.5".into()]];
        assert_eq!(columns(&["what", "n"], &rows), "what        n\na           1\nlonger  100.5");
    }
}
