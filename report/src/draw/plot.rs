//! An area with axes.

use super::{At, Scale, Size, Svg, width_of};

/// Of the letters on axes.
const LETTERS: f64 = 12.0;
/// Between two labels of the lower axis, at least.
const APART: f64 = 10.0;

/// One axis.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// From value to place.
    pub scale: Scale,
    /// What is written at a mark.
    pub label: fn(f64) -> String,
    /// What it is.
    pub name: &'static str,
}

/// An area with axes, in a picture of its own.
#[derive(Clone, Debug)]
pub struct Plot {
    /// The picture.
    pub svg: Svg,
    x: Scale,
    y: Scale,
    /// Left, top, right and bottom of the area.
    pub area: (f64, f64, f64, f64),
}

/// How much room there is left of an area for labels: the same for areas that stand below each
/// other.
pub const fn margin(size: Size) -> f64 {
    if size.narrow { 48.0 } else { 64.0 }
}

impl Plot {
    /// With marks and grid. `height` is the whole picture's.
    pub fn new(size: Size, height: f64, label: &str, x: Axis, y: Axis) -> Self {
        let lower = 36.0;
        let area = (margin(size), 20.0, size.width - 12.0, height - lower);
        let mut plot = Plot {
            svg: Svg::new(size.width, height, label),
            x: x.scale,
            y: y.scale,
            area,
        };
        plot.marks_y(&y);
        plot.marks_x(&x);
        let (left, top, right, _) = area;
        plot.svg.words((left, top - 7.0), At::Start, "t m", y.name);
        let under = (right, height - 3.0);
        plot.svg.words(under, At::End, "t m", x.name);
        plot
    }

    fn marks_y(&mut self, axis: &Axis) {
        let (left, top, right, bottom) = self.area;
        let wanted = ((bottom - top) / 34.0) as usize;
        let mut free = f64::INFINITY;
        for tick in axis.scale.ticks(wanted.max(3), axis.label) {
            let y = self.y(tick.value);
            if tick.label.is_empty() {
                self.svg.line((left, y), (right, y), "g2");
                continue;
            }
            self.svg.line((left, y), (right, y), "g");
            if y < free - LETTERS {
                self.svg
                    .words((left - 6.0, y + 4.0), At::End, "t", &tick.label);
                free = y;
            }
        }
    }

    fn marks_x(&mut self, axis: &Axis) {
        let (left, top, right, bottom) = self.area;
        let wanted = ((right - left) / 70.0) as usize;
        let mut free = f64::NEG_INFINITY;
        for tick in axis.scale.ticks(wanted.max(2), axis.label) {
            let x = self.x(tick.value);
            self.svg.line((x, top), (x, bottom), "g2");
            let half = width_of(&tick.label, LETTERS) / 2.0;
            if tick.label.is_empty() || x - half < free {
                continue;
            }
            // Within the picture, whatever stands at its ends.
            let middle = x.clamp(half, self.svg.width - half);
            self.svg
                .words((middle, bottom + 15.0), At::Middle, "t", &tick.label);
            free = middle + half + APART;
        }
        self.svg.line((left, bottom), (right, bottom), "ax");
    }

    /// Where a value lies from left to right.
    pub fn x(&self, value: f64) -> f64 {
        let (left, _, right, _) = self.area;
        left + self.x.at(value).clamp(-0.001, 1.001) * (right - left)
    }

    /// Where a value lies from top to bottom.
    pub fn y(&self, value: f64) -> f64 {
        let (_, top, _, bottom) = self.area;
        bottom - self.y.at(value).clamp(-0.001, 1.001) * (bottom - top)
    }

    /// A curve through values.
    pub fn curve(&mut self, points: impl IntoIterator<Item = (f64, f64)>, class: &str) {
        let places: Vec<(f64, f64)> = points
            .into_iter()
            .map(|(x, y)| match (x.is_finite(), y.is_finite()) {
                (true, true) => (self.x(x), self.y(y)),
                _ => (f64::NAN, f64::NAN),
            })
            .collect();
        self.svg.curve(places, class);
    }

    /// What lies between 0, or the lower end, and values.
    pub fn filled(&mut self, points: &[(f64, f64)], class: &str) {
        let bottom = self.area.3;
        let upper: Vec<_> = points
            .iter()
            .map(|(x, y)| (self.x(*x), self.y(*y)))
            .collect();
        let lower: Vec<_> = upper.iter().map(|(x, _)| (*x, bottom)).collect();
        self.svg.area(&upper, &lower, class);
    }

    /// A bound from left to right, with a word at its right end.
    pub fn bound(&mut self, value: f64, word: &str) {
        let (left, _, right, _) = self.area;
        let y = self.y(value);
        self.svg.line((left, y), (right, y), "bound");
        self.svg
            .words((right - 4.0, y - 4.0), At::End, "t bt halo", word);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{rates, seconds};
    use super::*;

    fn plot(size: Size) -> Plot {
        let x = Axis {
            scale: Scale::Linear(0.0, 600.0),
            label: seconds,
            name: "time",
        };
        let y = Axis {
            scale: Scale::up_to(1_000.0),
            label: rates,
            name: "samples/s",
        };
        Plot::new(size, 200.0, "a plot", x, y)
    }

    #[test]
    fn the_ends_of_the_scales_are_the_ends_of_the_area() {
        let plot = plot(Size::FULL);
        let (left, top, right, bottom) = plot.area;
        assert_eq!((plot.x(0.0), plot.x(600.0)), (left, right));
        assert_eq!((plot.y(0.0), plot.y(1_000.0)), (bottom, top));
        // What lies far outside is not drawn far outside.
        assert!(plot.y(1e9) > top - 2.0);
    }

    #[test]
    fn labels_of_a_narrow_plot_are_fewer_and_do_not_touch() {
        let labels = |size| {
            let text = plot(size).svg.text("x");
            text.matches(" s</text>").count()
        };
        assert!(labels(Size::NARROW) < labels(Size::FULL));
        assert!(labels(Size::NARROW) >= 3);
    }
}
