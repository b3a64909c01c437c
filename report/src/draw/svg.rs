//! One picture as text.

use std::fmt::Write;

use crate::html::escape;

/// Where words stand at their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// They begin there.
    Start,
    /// Their middle is there.
    Middle,
    /// They end there.
    End,
}

/// Left and top, width and height.
pub type Box4 = ((f64, f64), (f64, f64));
/// Left, middle and length of a strip that lies.
pub type Strip = (f64, f64, f64);

/// One picture. Places are units of a pixel from the upper left corner.
#[derive(Clone, Debug)]
pub struct Svg {
    /// Width.
    pub width: f64,
    /// Height.
    pub height: f64,
    /// What it shows, for whoever cannot see it.
    label: String,
    body: String,
}

/// A place as short as it can be written.
fn n(value: f64) -> Num {
    Num(value)
}

struct Num(f64);

impl std::fmt::Display for Num {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tenths = if self.0.is_finite() {
            (self.0 * 10.0).round() as i64
        } else {
            0
        };
        match (tenths / 10, tenths % 10) {
            (whole, 0) => write!(f, "{whole}"),
            (0, part) if part < 0 => write!(f, "-.{}", -part),
            (0, part) => write!(f, ".{part}"),
            (whole, part) => write!(f, "{whole}.{}", part.abs()),
        }
    }
}

/// About how wide words are at a size of letters; rather too wide than too narrow.
pub fn width_of(text: &str, size: f64) -> f64 {
    let narrow = |c: char| "il.,:;|'! ".contains(c);
    let units: f64 = text
        .chars()
        .map(|c| match c {
            c if narrow(c) => 0.33,
            'm' | 'w' | 'M' | 'W' | '%' => 0.9,
            c if c.is_ascii_uppercase() => 0.7,
            _ => 0.58,
        })
        .sum();
    units * size
}

// Writing to a String does not fail.
impl Svg {
    /// An empty one.
    pub fn new(width: f64, height: f64, label: impl Into<String>) -> Self {
        Svg {
            width,
            height,
            label: label.into(),
            body: String::new(),
        }
    }

    /// A line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = write!(
            self.body,
            "<path class=\"{class}\" d=\"M{} {}L{} {}\"/>",
            n(x1),
            n(y1),
            n(x2),
            n(y2)
        );
    }

    /// A line whose thickness says something.
    pub fn thick(&mut self, from: (f64, f64), to: (f64, f64), width: f64, class: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let middle = (x1 + x2) / 2.0;
        let _ = write!(
            self.body,
            "<path class=\"{class}\" stroke-width=\"{}\" d=\"M{} {}C{} {} {} {} {} {}\"/>",
            n(width),
            n(x1),
            n(y1),
            n(middle),
            n(y1),
            n(middle),
            n(y2),
            n(x2),
            n(y2)
        );
    }

    /// A box; a sliver where it would be none.
    pub fn rect(&mut self, at: (f64, f64), size: (f64, f64), class: &str) {
        self.rounded(at, size, 0.0, class);
    }

    /// A box with rounded corners.
    pub fn rounded(&mut self, at: (f64, f64), size: (f64, f64), radius: f64, class: &str) {
        let (w, h) = (size.0.max(0.0), size.1.max(0.0));
        let _ = write!(
            self.body,
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"",
            n(at.0),
            n(at.1),
            n(w),
            n(h)
        );
        if radius > 0.0 {
            let _ = write!(self.body, " rx=\"{}\"", n(radius));
        }
        self.body.push_str("/>");
    }

    /// A box that says what it is when pointed at.
    pub fn titled(&mut self, at: (f64, f64), size: (f64, f64), class: &str, title: &str) {
        let _ = write!(
            self.body,
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>{}</title></rect>",
            n(at.0),
            n(at.1),
            n(size.0.max(0.0)),
            n(size.1.max(0.0)),
            escape(title)
        );
    }

    /// A circle.
    pub fn dot(&mut self, at: (f64, f64), radius: f64, class: &str) {
        let _ = write!(
            self.body,
            "<circle class=\"{class}\" cx=\"{}\" cy=\"{}\" r=\"{}\"/>",
            n(at.0),
            n(at.1),
            n(radius)
        );
    }

    /// Words. The classes that matter: `t` small, `T` plain, `b` bold, `m` muted.
    pub fn words(&mut self, at: (f64, f64), how: At, class: &str, text: &str) {
        let anchor = match how {
            At::Start => "",
            At::Middle => " text-anchor=\"middle\"",
            At::End => " text-anchor=\"end\"",
        };
        let _ = write!(
            self.body,
            "<text class=\"{class}\" x=\"{}\" y=\"{}\"{anchor}>{}</text>",
            n(at.0),
            n(at.1),
            escape(text)
        );
    }

    /// A curve through places; those that are not finite break it.
    pub fn curve(&mut self, points: impl IntoIterator<Item = (f64, f64)>, class: &str) {
        let mut path = String::new();
        let mut pen = false;
        for (x, y) in points {
            if !(x.is_finite() && y.is_finite()) {
                pen = false;
                continue;
            }
            let _ = write!(path, "{}{} {}", if pen { 'L' } else { 'M' }, n(x), n(y));
            pen = true;
        }
        if !path.is_empty() {
            let _ = write!(self.body, "<path class=\"{class}\" d=\"{path}\"/>");
        }
    }

    /// What lies between two curves of the same places.
    pub fn area(&mut self, upper: &[(f64, f64)], lower: &[(f64, f64)], class: &str) {
        let all = upper.iter().chain(lower.iter().rev());
        let mut path = String::new();
        for (i, (x, y)) in all.enumerate() {
            let _ = write!(
                path,
                "{}{} {}",
                if i == 0 { 'M' } else { 'L' },
                n(*x),
                n(*y)
            );
        }
        if !path.is_empty() {
            let _ = write!(self.body, "<path class=\"{class}\" d=\"{path}Z\"/>");
        }
    }

    /// Many strips of one height and one class: each from `x` on, `length` long, its middle at `y`.
    pub fn strips(&mut self, strips: &[Strip], height: f64, class: &str) {
        let mut path = String::with_capacity(strips.len() * 12);
        for (x, y, length) in strips {
            let _ = write!(path, "M{} {}h{}", n(*x), n(*y), n(*length));
        }
        if !path.is_empty() {
            let _ = write!(
                self.body,
                "<path class=\"{class}\" stroke-width=\"{}\" d=\"{path}\"/>",
                n(height)
            );
        }
    }

    /// Many boxes of one class, each a place and a size.
    pub fn boxes(&mut self, boxes: &[Box4], class: &str) {
        let mut path = String::with_capacity(boxes.len() * 24);
        for ((x, y), (w, h)) in boxes {
            let _ = write!(path, "M{} {}h{}v{}h{}z", n(*x), n(*y), n(*w), n(*h), n(-w));
        }
        if !path.is_empty() {
            let _ = write!(self.body, "<path class=\"{class}\" d=\"{path}\"/>");
        }
    }

    /// Another picture within this one.
    pub fn put(&mut self, at: (f64, f64), other: &Svg) {
        let _ = write!(
            self.body,
            "<g transform=\"translate({} {})\">{}</g>",
            n(at.0),
            n(at.1),
            other.body
        );
    }

    /// The element. Its name space goes without saying in HTML.
    pub fn text(&self, class: &str) -> String {
        format!(
            "<svg class=\"{class}\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">{}</svg>",
            n(self.width),
            n(self.height),
            escape(&self.label),
            self.body
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_as_short_as_can_be() {
        let written: Vec<String> = [0.0, 1.0, 0.25, -0.25, 12.34, -12.36, f64::NAN, 0.04]
            .iter()
            .map(|v| n(*v).to_string())
            .collect();
        assert_eq!(written, ["0", "1", ".3", "-.3", "12.3", "-12.4", "0", "0"]);
    }

    #[test]
    fn words_are_escaped_and_a_gap_breaks_a_curve() {
        let mut svg = Svg::new(10.0, 10.0, "a < b");
        svg.words((1.0, 2.0), At::End, "t", "x & \"y\" <z>");
        svg.curve([(0.0, 0.0), (1.0, f64::NAN), (2.0, 2.0), (3.0, 3.0)], "c");
        assert_eq!(
            svg.text("wide"),
            "<svg class=\"wide\" viewBox=\"0 0 10 10\" role=\"img\" aria-label=\"a &lt; b\">\
             <text class=\"t\" x=\"1\" y=\"2\" text-anchor=\"end\">x &amp; &quot;y&quot; &lt;z&gt;</text>\
             <path class=\"c\" d=\"M0 0M2 2L3 3\"/></svg>"
        );
    }
}
