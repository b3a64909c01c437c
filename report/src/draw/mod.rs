//! Drawing: SVG as text, with scales, axes and the shapes that the pictures are made of.
//!
//! Colours are classes of the page's style sheet, so that a picture is light or dark as its reader
//! wants it. Nothing here knows what is drawn.
//!
//! | file | purpose |
//! | --- | --- |
//! | [`Svg`] | one picture: lines, boxes, words |
//! | [`Scale`] | from a value to a place: linear, logarithmic, percentiles |
//! | [`Plot`] | an area with axes, and curves in it |
//! | [`spark()`] | a curve in a line of a table |

mod plot;
mod scale;
mod spark;
mod svg;

pub use plot::{Axis, Plot, margin};
pub use scale::{Scale, rates, seconds, times};
pub use spark::spark;
pub use svg::{At, Box4, Strip, Svg, width_of};

/// How wide a picture is drawn. Each is drawn twice: as wide as the page has it on a desk or on
/// paper, and for a hand's width, with the same size of words.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// Of the picture, in units of a pixel.
    pub width: f64,
    /// For a hand's width.
    pub narrow: bool,
}

impl Size {
    /// Beside another picture.
    pub const HALF: Size = Size::wide(560.0);
    /// All across.
    pub const FULL: Size = Size::wide(1000.0);
    /// In a hand.
    pub const NARROW: Size = Size {
        width: 360.0,
        narrow: true,
    };

    const fn wide(width: f64) -> Size {
        Size {
            width,
            narrow: false,
        }
    }
}

/// The picture in both widths; the style sheet shows the one that fits.
pub fn both(wide: Size, draw: impl Fn(Size) -> Svg) -> String {
    let (wide, narrow) = (draw(wide), draw(Size::NARROW));
    format!("{}{}", wide.text("wide"), narrow.text("narrow"))
}
