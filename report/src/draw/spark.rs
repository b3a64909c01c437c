//! A curve as high as a line of words, for a cell of a table.

use super::Svg;

const WIDTH: f64 = 132.0;
const HEIGHT: f64 = 26.0;
/// Most places of a curve.
const POINTS: usize = 66;

/// Values from first to last, below a common `top`; the largest of several that share a place.
pub fn spark(values: &[f64], top: f64, class: &str, label: &str) -> String {
    let mut svg = Svg::new(WIDTH, HEIGHT, label);
    let base = HEIGHT - 3.0;
    svg.line((0.0, base), (WIDTH, base), "g");
    let points: Vec<(f64, f64)> = fewer(values, POINTS)
        .into_iter()
        .map(|(at, v)| {
            let share = if top > 0.0 {
                (v / top).clamp(0.0, 1.0)
            } else {
                0.0
            };
            (at * WIDTH, base - share * (HEIGHT - 6.0))
        })
        .collect();
    let floor: Vec<(f64, f64)> = points.iter().map(|(x, _)| (*x, base)).collect();
    svg.area(&points, &floor, &format!("{class} soft"));
    svg.curve(points, class);
    svg.text("spark")
}

/// At most `most` of them, each the largest of its neighbours, and where it lies from 0 to 1.
fn fewer(values: &[f64], most: usize) -> Vec<(f64, f64)> {
    let each = values.len().div_ceil(most.max(1)).max(1);
    let groups = values.len().div_ceil(each).max(1) as f64;
    values
        .chunks(each)
        .enumerate()
        .map(|(i, group)| {
            let top = group.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            ((i as f64 + 0.5) / groups, top)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_of_many_is_seen_among_few() {
        let mut values = vec![1.0; 1_000];
        values[517] = 9.0;
        let few = fewer(&values, 66);
        assert!(few.len() <= 66);
        let highest = few.iter().find(|(_, v)| *v == 9.0).expect("the highest");
        assert!((highest.0 - 0.517).abs() < 0.02, "{highest:?}");
        assert_eq!(fewer(&[3.0], 66), [(0.5, 3.0)]);
        assert!(fewer(&[], 66).is_empty());
    }
}
