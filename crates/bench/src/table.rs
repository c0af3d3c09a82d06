//! Text tables for terminals.

/// Lays rows out in columns: the first two left-aligned, numbers to the right.
pub fn layout(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0).max(header[column].chars().count())
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for (column, (cell, width)) in cells.zip(&widths).enumerate() {
            let gap = " ".repeat(width - cell.chars().count());
            text += &if column < 2 { format!("{cell}{gap}  ") } else { format!("{gap}{cell}  ") };
        }
        text.trim_end().to_owned() + "\n"
    };
    let mut text = line(&mut header.iter().copied());
    for row in rows {
        text += &line(&mut row.iter().map(String::as_str));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["a".into(), "é".into(), "1".into()], vec!["bcd".into(), "x".into(), "100".into()]];
        assert_eq!(layout(&["", "root", "n"], &rows), "     root    n\na    é       1\nbcd  x     100\n");
    }
}
