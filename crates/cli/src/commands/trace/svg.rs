//! Draws stacks as a flame graph: an SVG that needs no script, font or style from outside.

use std::fmt::Write as _;
use std::time::Duration;

use super::flame::Stacks;
use super::table::time;
use crate::output::plain;

/// Width of the picture, and height of a frame, in pixels.
const WIDTH: f64 = 1200.0;
const ROW: f64 = 18.0;
const MARGIN: f64 = 10.0;
/// Height of the title.
const TITLE: f64 = 34.0;
/// Minimum width of a drawn frame, and of one with text.
const VISIBLE: f64 = 0.3;
const READABLE: f64 = 24.0;
/// Estimated width of a character.
const CHARACTER: f64 = 6.6;
/// Maximum depth of frames that are drawn.
const DEPTH_MAX: usize = 64;

/// A frame of the picture.
struct Frame {
    name: String,
    depth: usize,
    start: u64,
    micros: u64,
}

/// Returns the picture; `title` is the traced command.
pub(super) fn write(title: &str, stacks: &Stacks) -> Vec<u8> {
    let frames = frames(stacks);
    let total = stacks.values().sum::<u64>().max(1);
    let depth = frames.iter().map(|frame| frame.depth + 1).max().unwrap_or(1);
    let height = TITLE + depth as f64 * ROW + MARGIN;
    let mut text = String::new();
    // Writing to a string can't fail.
    let _ = draw(&mut text, title, &frames, (total, height));
    text.into_bytes()
}

/// Returns the frames, the root at depth 0; stacks are sorted, so equal frames are neighbours.
fn frames(stacks: &Stacks) -> Vec<Frame> {
    let total = stacks.values().sum();
    let mut done = vec![Frame { name: "all".to_owned(), depth: 0, start: 0, micros: total }];
    let mut open: Vec<Frame> = Vec::new();
    let mut at = 0;
    for (stack, micros) in stacks {
        let same = open.iter().zip(stack).take_while(|(frame, name)| frame.name == **name).count();
        done.extend(open.drain(same..).map(|frame| Frame { micros: at - frame.start, ..frame }));
        for (depth, name) in stack.iter().enumerate().take(DEPTH_MAX).skip(same) {
            open.push(Frame { name: name.clone(), depth: depth + 1, start: at, micros: 0 });
        }
        at += micros;
    }
    done.extend(open.into_iter().map(|frame| Frame { micros: at - frame.start, ..frame }));
    done
}

fn draw(text: &mut String, title: &str, frames: &[Frame], (total, height): (u64, f64)) -> std::fmt::Result {
    let width = WIDTH;
    writeln!(text, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>")?;
    writeln!(
        text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"monospace\" font-size=\"11\">"
    )?;
    let whole = time(Duration::from_micros(total));
    let title = format!("{title}: {whole} in requests to mounts, all threads together");
    writeln!(text, "<title>{}</title>", escaped(&title))?;
    writeln!(text, "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>")?;
    let short = fitting(&title, WIDTH - 2.0 * MARGIN);
    writeln!(text, "<text x=\"{MARGIN}\" y=\"20\" font-size=\"13\">{}</text>", escaped(&short))?;
    let scale = (WIDTH - 2.0 * MARGIN) / total as f64;
    for frame in frames {
        let (x, w) = (MARGIN + frame.start as f64 * scale, frame.micros as f64 * scale);
        if w < VISIBLE {
            continue;
        }
        let y = TITLE + frame.depth as f64 * ROW;
        let share = frame.micros as f64 * 100.0 / total as f64;
        let label = format!("{}: {} ({share:.1} %)", frame.name, time(Duration::from_micros(frame.micros)));
        writeln!(text, "<g><title>{}</title>", escaped(&label))?;
        writeln!(
            text,
            "<rect x=\"{x:.1}\" y=\"{y:.0}\" width=\"{:.1}\" height=\"{:.0}\" rx=\"1\" fill=\"{}\"/>",
            (w - 0.5).max(VISIBLE),
            ROW - 1.0,
            color(&frame.name, frame.depth)
        )?;
        if w >= READABLE {
            let name = fitting(&frame.name, w - 6.0);
            writeln!(text, "<text x=\"{:.1}\" y=\"{:.0}\">{}</text>", x + 3.0, y + 12.5, escaped(&name))?;
        }
        writeln!(text, "</g>")?;
    }
    writeln!(text, "</svg>")
}

/// Returns the colour of a frame: the same for the same name.
fn color(name: &str, depth: usize) -> String {
    if depth == 0 {
        return "#d8d8d8".to_owned();
    }
    let hash =
        name.bytes().fold(2_166_136_261_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619));
    let part = |shift: u32, span: u32| (hash >> shift) % span;
    // Warm colours on which black text is readable.
    format!("rgb({},{},{})", 225 + part(0, 30), 130 + part(8, 95), 60 + part(16, 50))
}

/// Cuts a text so that it fits.
fn fitting(text: &str, width: f64) -> String {
    let room = (width / CHARACTER).max(0.0) as usize;
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let cut: String = text.chars().take(room.saturating_sub(1)).collect();
    if cut.is_empty() { cut } else { format!("{cut}…") }
}

/// Escapes a text for XML; characters that XML forbids are replaced.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in plain(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            '\u{fffe}' | '\u{ffff}' => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(frames: &[&str]) -> Vec<String> {
        frames.iter().map(|frame| (*frame).to_owned()).collect()
    }

    #[test]
    fn frames_of_a_picture_add_up() {
        let stacks = Stacks::from([
            (stack(&["sh", "a", "x"]), 5),
            (stack(&["sh", "a"]), 2),
            (stack(&["sh", "b"]), 3),
            (stack(&["z"]), 10),
        ]);
        let found = frames(&stacks);
        let of = |name: &str| {
            let frame = found.iter().find(|frame| frame.name == name).expect(name);
            (frame.depth, frame.start, frame.micros)
        };
        assert_eq!(of("all"), (0, 0, 20));
        assert_eq!((of("sh"), of("z")), ((1, 0, 10), (1, 10, 10)));
        assert_eq!((of("a"), of("x"), of("b")), ((2, 0, 7), (3, 2, 5), (2, 7, 3)));
    }

    #[test]
    fn a_picture_escapes_everything_and_names_no_resource() {
        let stacks = Stacks::from([(stack(&["a<script>\"&'\u{1b}\u{ffff}"]), 7)]);
        let text = String::from_utf8(write("cmd <&>", &stacks)).expect("text");
        assert!(text.contains("cmd &lt;&amp;&gt;"), "{text}");
        assert!(text.contains("a&lt;script&gt;&quot;&amp;&apos;??"), "{text}");
        for bad in ["<script", "href", "url(", "<image", "@import"] {
            assert!(!text.contains(bad), "{bad} in {text}");
        }
        assert_eq!(text.matches("http").count(), 1, "the name space of SVG alone");
    }

    #[test]
    fn a_picture_without_requests_is_drawn() {
        let text = String::from_utf8(write("true", &Stacks::new())).expect("text");
        assert!(text.ends_with("</svg>\n"), "{text}");
    }
}
