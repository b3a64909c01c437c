//! Charts as data: a page embeds each chart as JSON in an attribute.
//!
//! The page's script, `page/charts.js`, draws the charts with uPlot. The script knows nothing about
//! runs: the JSON has titles, lines, colours, units and marks.

use serde::{Serialize, Serializer};

/// Maximum number of values of a line.
pub const POINTS: usize = 300;

/// How the script writes the values of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// A number of things.
    Count,
    /// Seconds since the first query; charts with this x axis share cursor and zoom.
    Seconds,
    /// Microseconds.
    Us,
    /// A part of 1, shown in percent.
    Share,
    /// A quantile as `-log10(1 - quantile)`: each nine has the same length.
    Nines,
}

/// How the script draws the lines of a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Style {
    /// Lines from 0 up.
    Lines,
    /// Lines on a logarithmic y axis.
    Log,
    /// A bar for each value; bars of several lines are stacked.
    Bars,
    /// Points, whose x need not differ. The y axis is logarithmic if the values span much.
    Scatter,
}

/// How the script draws a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// A line.
    Line,
    /// A dashed line.
    Dashed,
    /// Points joined by a line.
    Joined,
    /// Filled points.
    Filled,
    /// Hollow points.
    Hollow,
}

#[derive(Clone, Debug, Serialize)]
struct ChartLine {
    name: String,
    colour: Option<&'static str>,
    shape: Shape,
    #[serde(serialize_with = "rounded")]
    values: Vec<f64>,
}

#[derive(Clone, Debug, Serialize)]
struct EventMark {
    x: f64,
    text: String,
    colour: &'static str,
}

/// One chart: lines over one x axis.
#[derive(Clone, Debug, Serialize)]
pub struct Chart {
    /// Title above the chart.
    #[serde(skip)]
    pub title: String,
    style: Style,
    units: (Unit, Unit),
    #[serde(serialize_with = "rounded")]
    x: Vec<f64>,
    lines: Vec<ChartLine>,
    marks: Vec<EventMark>,
}

/// Rounds to four digits, more than a chart shows. NaN becomes `null`, a gap.
fn rounded<S: Serializer>(values: &[f64], to: S) -> Result<S::Ok, S::Error> {
    let round = |v: &f64| format!("{v:.3e}").parse::<f64>().unwrap_or(f64::NAN);
    to.collect_seq(values.iter().map(round))
}

impl Chart {
    /// A chart without lines. `units` are the units of x and y.
    pub fn new(title: impl Into<String>, style: Style, units: (Unit, Unit), x: Vec<f64>) -> Self {
        Chart {
            title: title.into(),
            style,
            units,
            x,
            lines: Vec::new(),
            marks: Vec::new(),
        }
    }

    /// Adds a line of a shape; missing values are gaps.
    pub fn shaped(
        &mut self,
        name: impl Into<String>,
        colour: Option<&'static str>,
        shape: Shape,
        values: impl IntoIterator<Item = f64>,
    ) {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.resize(self.x.len(), f64::NAN);
        self.lines.push(ChartLine {
            name: name.into(),
            colour,
            shape,
            values,
        });
    }

    /// Adds a line. `colour` is a variable of the style sheet without its dashes; with `None` the
    /// script chooses a colour.
    pub fn line(
        &mut self,
        name: impl Into<String>,
        colour: Option<&'static str>,
        values: impl IntoIterator<Item = f64>,
    ) {
        self.shaped(name, colour, Shape::Line, values);
    }

    /// Adds a dashed horizontal line at `bound`, if there is one.
    pub fn bound(&mut self, bound: Option<f64>, name: &str) {
        if let Some(value) = bound {
            let values = vec![value; self.x.len()];
            self.shaped(name, Some("bad"), Shape::Dashed, values);
        }
    }

    /// Adds a vertical line at an event. In [`Style::Scatter`] the nth mark names the nth point.
    pub fn mark(&mut self, x: f64, text: impl Into<String>, colour: &'static str) {
        let text = text.into();
        self.marks.push(EventMark { x, text, colour });
    }

    /// Whether all values of all lines are 0 or missing.
    pub fn is_zero(&self) -> bool {
        let mut values = self.lines.iter().flat_map(|l| &l.values);
        values.all(|v| *v == 0.0 || v.is_nan())
    }

    /// Whether a line has enough values to draw.
    pub fn is_drawn(&self) -> bool {
        let least = match self.style {
            Style::Bars | Style::Scatter => 1,
            Style::Lines | Style::Log => 2,
        };
        let finite = |l: &ChartLine| l.values.iter().filter(|v| v.is_finite()).count();
        self.lines.iter().any(|l| finite(l) >= least)
    }

    /// The chart as JSON. Serialization of plain data cannot fail.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use qdl::testkit::assert_has;

    use super::*;

    #[test]
    fn values_have_four_digits_and_a_gap_is_null() {
        let values = vec![0.0, 12_345_678.0, 0.001_234_567, -98.765_4, f64::NAN];
        let mut chart = Chart::new(
            "a < b",
            Style::Lines,
            (Unit::Seconds, Unit::Us),
            values.clone(),
        );
        chart.line("x", Some("net"), values);
        assert_has(&chart.json(), &["[0.0,12350000.0,0.001235,-98.77,null]"]);
        assert!(chart.is_drawn());
        let mut chart = Chart::new("t", Style::Log, (Unit::Seconds, Unit::Us), vec![0.5, 1.5]);
        chart.line("x", None, [f64::NAN, 3.0]);
        assert!(!chart.is_drawn(), "one point is no line");
    }
}
