//! Margins against rates: the monotone curve through them, and where it meets the limit.
//!
//! A point is the logarithm of a rate and the logarithm of the margin that was measured there. The
//! curve is the isotonic regression of the points. Where it crosses the limit is looked at more
//! closely: a straight line through the points nearby, fitted so that outliers count little, and
//! the scatter of points around it. The rate that is wanted is not where half of the runs are
//! VALID, but where nine in ten are: where the line lies below the limit by as much as one point in
//! ten lies above the line.

/// The logarithms of a rate and of a margin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Of the rate.
    pub x: f64,
    /// Of the margin: above 0 the limit was not kept.
    pub y: f64,
}

/// One rate of the monotone curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The logarithm of the rate.
    pub x: f64,
    /// The curve there.
    pub y: f64,
    /// Points at this rate.
    pub points: usize,
}

/// Isotonic regression: of all curves that never fall, the nearest to the points.
pub fn isotonic(points: &[Point]) -> Vec<Step> {
    let mut sorted = points.to_vec();
    sorted.sort_by(|a, b| a.x.total_cmp(&b.x));
    // Points at one rate first, as their mean.
    let mut rates: Vec<Step> = Vec::new();
    for p in sorted {
        match rates.last_mut() {
            Some(step) if (step.x - p.x).abs() < 1e-9 => {
                let n = step.points as f64;
                step.y = (step.y * n + p.y) / (n + 1.0);
                step.points += 1;
            }
            _ => rates.push(Step {
                x: p.x,
                y: p.y,
                points: 1,
            }),
        }
    }
    // Then whoever falls is pooled with those before it.
    let mut pools: Vec<(f64, usize, usize)> = Vec::new();
    for step in &rates {
        pools.push((step.y, step.points, 1));
        while let [.., (y0, n0, k0), (y1, n1, k1)] = pools[..] {
            if y0 <= y1 {
                break;
            }
            let n = n0 + n1;
            let y = (y0 * n0 as f64 + y1 * n1 as f64) / n as f64;
            pools.truncate(pools.len() - 2);
            pools.push((y, n, k0 + k1));
        }
    }
    let fitted = pools
        .iter()
        .flat_map(|(y, _, rates)| std::iter::repeat_n(*y, *rates));
    let steps = rates.iter().zip(fitted);
    steps.map(|(step, y)| Step { y, ..*step }).collect()
}

/// Where a curve crosses 0: the last rate before it, and the first behind it.
pub fn crossing(curve: &[Step]) -> (Option<Step>, Option<Step>) {
    let above = curve.iter().position(|step| step.y > 0.0);
    let below = above.unwrap_or(curve.len()).checked_sub(1);
    (below.map(|i| curve[i]), above.map(|i| curve[i]))
}

/// Where the limit is, as far as the points tell.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// The logarithm of the rate at which nine runs in ten are VALID.
    pub x: f64,
    /// Its standard error.
    pub error: f64,
    /// By how much the logarithm of the margin grows with that of the rate.
    pub slope: f64,
    /// The deviation of points from the line.
    pub scatter: f64,
    /// By how much one point in ten exceeds the line.
    pub tail: f64,
    /// The points that the line goes by: their places in the list.
    pub near: Vec<usize>,
    /// What each of them is above the line.
    pub residuals: Vec<f64>,
    /// Margins jump over the limit: the estimate goes by verdicts.
    pub wall: bool,
}

/// Points that are looked at in any case, however far away.
const FEWEST: usize = 8;
/// Points nearer than this are looked at in any case: one part in a hundred of the rate.
const NEAREST: f64 = 0.01;
/// Points within so many scatters of the limit are looked at.
const WIDTH: f64 = 1.5;
/// The chance of VALID that is wanted.
const WANTED: f64 = 0.9;
/// The quantile of the normal distribution there.
const NORMAL: f64 = 1.2816;
/// The squared error of the tail of one point, in deviations.
const OF_THE_TAIL: f64 = 1.6;
/// How far from a wall verdicts are looked at.
const WALL: f64 = 0.08;
/// The limit is no further from where the curve crosses it: few points there, beside others that
/// are far away and on another bend of the curve, draw a line that misses it.
const REACH: f64 = 0.08;
/// What lies so many deviations off is no part of the scatter, but a disturbance.
const OUTLIER: f64 = 4.0;

/// Looks for the limit; `None` where all points are on one side of it, or there are too few.
pub fn estimate(points: &[Point]) -> Option<Estimate> {
    let curve = isotonic(points);
    let (Some(below), Some(above)) = crossing(&curve) else {
        return None;
    };
    let part = -below.y / (above.y - below.y);
    let mut at = below.x + part * (above.x - below.x);
    let mut width = (above.x - below.x).max(NEAREST);
    let reach = REACH.max(above.x - below.x);
    let mut best: Option<Estimate> = None;
    for _ in 0..5 {
        let found = local(points, at, width)?;
        if let Some(found) = wall(points, &found.near, at) {
            return Some(found);
        }
        // No further than the points reach.
        let ends = found.near.iter().map(|i| points[*i].x);
        let (low, high) = ends.fold((f64::MAX, f64::MIN), |(l, h), x| (l.min(x), h.max(x)));
        at = found.x.clamp(low - NEAREST, high + NEAREST);
        at = at.clamp(below.x.min(above.x) - reach, above.x + reach);
        width = NEAREST.max(WIDTH * found.scatter / found.slope);
        let settled = best.is_some_and(|b| b.near == found.near);
        best = Some(Estimate { x: at, ..found });
        if settled {
            break;
        }
    }
    best
}

/// Where margins jump over the limit they say no more than the verdicts do, and a line through them
/// is none. Then the verdicts are what there is: the chance of VALID falls from 1 to 0 as a normal
/// distribution does, whose middle and width are weighed by all that they may be.
fn wall(points: &[Point], near: &[usize], at: f64) -> Option<Estimate> {
    let side = |above: bool| {
        let ys = near.iter().map(|i| points[*i].y);
        let mut ys: Vec<f64> = ys.filter(|y| (*y > 0.0) == above).collect();
        ys.sort_by(f64::total_cmp);
        ys
    };
    let (below, above) = (side(false), side(true));
    let (Some(last), Some(first)) = (below.last(), above.first()) else {
        return None;
    };
    let spread = |ys: &[f64]| ys[ys.len() * 9 / 10] - ys[ys.len() / 10];
    let jump = first - last;
    if below.len() < 2
        || above.len() < 2
        || jump < 1.0
        || jump < 2.0 * spread(&below).max(spread(&above))
    {
        return None;
    }
    // Verdicts from further away than margins: each says little.
    let near: Vec<usize> = (0..points.len())
        .filter(|i| (points[*i].x - at).abs() <= WALL)
        .collect();
    let (low, high) = (at - WALL / 2.0, at + WALL / 2.0);
    let chance = |middle: f64, width: f64, x: f64| {
        // The logistic curve that is nearest to the normal one.
        (1.0 / (1.0 + (1.702 * (x - middle) / width).exp())).clamp(1e-4, 1.0 - 1e-4)
    };
    let mut sums = [0.0; 4];
    for i in 0..80 {
        let middle = low + (high - low) * (f64::from(i) + 0.5) / 80.0;
        for k in 0..10 {
            let width = 0.000_5 * 1.6_f64.powi(k);
            let weigh = |i: &usize| {
                let p = chance(middle, width, points[*i].x);
                if points[*i].y > 0.0 {
                    (1.0 - p).ln()
                } else {
                    p.ln()
                }
            };
            let weight = near.iter().map(weigh).sum::<f64>().exp();
            let x = middle - NORMAL * width;
            let parts = [1.0, x, x * x, width.ln()];
            sums.iter_mut()
                .zip(parts)
                .for_each(|(s, p)| *s += weight * p);
        }
    }
    let [all, x, squares, width] = sums;
    if all < 1e-200 {
        return None;
    }
    let (x, width) = (x / all, (width / all).exp());
    let error = (squares / all - x * x).max(1e-8).sqrt();
    let slope = jump / (4.0 * width);
    let scatter = slope * width;
    let residual = |i: &usize| {
        let p = chance(x + NORMAL * width, width, points[*i].x);
        let invalid = f64::from(u8::from(points[*i].y > 0.0));
        // In deviations of a coin, as if it were a margin.
        scatter * (invalid - (1.0 - p)) / (p * (1.0 - p)).sqrt().max(0.1)
    };
    Some(Estimate {
        x,
        error,
        slope,
        scatter,
        tail: NORMAL * scatter,
        residuals: near.iter().map(residual).collect(),
        near,
        wall: true,
    })
}

/// The line through the points within `width` of `at`.
fn local(points: &[Point], at: f64, width: f64) -> Option<Estimate> {
    let mut near: Vec<usize> = (0..points.len()).collect();
    near.sort_by(|a, b| {
        let away = |i: usize| (points[i].x - at).abs();
        away(*a).total_cmp(&away(*b))
    });
    let mut count = near
        .iter()
        .take_while(|i| (points[**i].x - at).abs() <= width)
        .count();
    count = count.max(FEWEST).min(near.len());
    // A line needs two rates, on which it rises.
    let mut line = None;
    while line.is_none() {
        if count < 3 {
            return None;
        }
        line = robust_line(points, &near[..count]).filter(|l| l.slope > 1e-3);
        if line.is_none() {
            if count == near.len() {
                return None;
            }
            count = (count + count / 2 + 1).min(near.len());
        }
    }
    let line = line?;
    near.truncate(count);
    near.sort_unstable();
    let residual =
        |i: &usize| points[*i].y - line.mean_y - line.slope * (points[*i].x - line.mean_x);
    let residuals: Vec<f64> = near.iter().map(residual).collect();
    let n = count as f64;
    let (scatter, tail) = scatter_and_tail(&residuals);
    let x = line.mean_x - (line.mean_y + tail) / line.slope;
    let spread: f64 = near
        .iter()
        .map(|i| (points[*i].x - line.mean_x).powi(2))
        .sum();
    let lever = (x - line.mean_x).powi(2) / spread.max(1e-12);
    let deviation = scatter.max(tail / NORMAL);
    // Few points know little of their own scatter.
    let few = 1.0 + 3.0 / n;
    let error = few * deviation * ((1.0 + OF_THE_TAIL) / n + lever).sqrt() / line.slope;
    Some(Estimate {
        x,
        error,
        slope: line.slope,
        scatter,
        tail,
        near,
        residuals,
        wall: false,
    })
}

struct Line {
    mean_x: f64,
    mean_y: f64,
    slope: f64,
}

/// Least squares, in which what lies far off counts in proportion less.
fn robust_line(points: &[Point], near: &[usize]) -> Option<Line> {
    let mut weights = vec![1.0; near.len()];
    let mut line = None;
    for _ in 0..4 {
        let sum = |of: &dyn Fn(Point) -> f64| {
            let parts = near.iter().zip(&weights);
            parts.map(|(i, w)| w * of(points[*i])).sum::<f64>()
        };
        let all = sum(&|_| 1.0);
        let (mean_x, mean_y) = (sum(&|p| p.x) / all, sum(&|p| p.y) / all);
        let xx = sum(&|p| (p.x - mean_x).powi(2));
        if xx < 1e-10 {
            return None;
        }
        let slope = sum(&|p| (p.x - mean_x) * (p.y - mean_y)) / xx;
        let residual = |i: &usize| points[*i].y - mean_y - slope * (points[*i].x - mean_x);
        let residuals: Vec<f64> = near.iter().map(residual).collect();
        let most = 2.0 * scale(&residuals).max(1e-9);
        for (weight, residual) in weights.iter_mut().zip(&residuals) {
            *weight = (most / residual.abs().max(1e-12)).min(1.0);
        }
        line = Some(Line {
            mean_x,
            mean_y,
            slope,
        });
    }
    line
}

/// The deviation of these from 0, by the middle one of their sizes.
pub fn scale(residuals: &[f64]) -> f64 {
    let mut sizes: Vec<f64> = residuals.iter().map(|r| r.abs()).collect();
    1.4826 * median(&mut sizes)
}

/// The middle one; 0 of none.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    match n {
        0 => 0.0,
        _ if n % 2 == 1 => values[n / 2],
        _ => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

/// The deviation of these from a line of two parameters, and what one in ten exceeds. Disturbed
/// runs are counted and not measured: however far off one is, it is one INVALID run.
fn scatter_and_tail(residuals: &[f64]) -> (f64, f64) {
    let far = OUTLIER * scale(residuals).max(1e-9);
    let kept: Vec<f64> = residuals
        .iter()
        .copied()
        .filter(|r| r.abs() <= far)
        .collect();
    let squares = |of: &dyn Fn(f64) -> bool| {
        let chosen: Vec<f64> = kept.iter().copied().filter(|r| of(*r)).collect();
        let sum: f64 = chosen.iter().map(|r| r * r).sum();
        (sum, chosen.len() as f64)
    };
    let (all, n) = squares(&|_| true);
    let (up, ups) = squares(&|r| r > 0.0);
    let free = (n - 2.0).max(1.0);
    let scatter = (all / free).sqrt().max(1e-6);
    // Where margins scatter further up than down, that side counts.
    let upper = (up / ups.max(1.0) * n / free).sqrt();
    let above = residuals.iter().filter(|r| **r > far).count() as f64 / residuals.len() as f64;
    let tail = scatter.max(upper) * normal_quantile((WANTED / (1.0 - above)).min(0.98));
    (scatter, tail)
}

/// The quantile of the normal distribution, for `p` from 0.5 on, to three figures (Hastings).
fn normal_quantile(p: f64) -> f64 {
    let t = (-2.0 * (1.0 - p).ln()).sqrt();
    t - (2.30753 + 0.27061 * t) / (1.0 + 0.99229 * t + 0.04481 * t * t)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn points(list: &[(f64, f64)]) -> Vec<Point> {
        list.iter().map(|(x, y)| Point { x: *x, y: *y }).collect()
    }

    #[test]
    fn what_falls_is_pooled() {
        let curve = isotonic(&points(&[
            (0.0, 1.0),
            (2.0, 5.0),
            (1.0, 3.0),
            (1.0, 5.0),
            (3.0, 0.0),
        ]));
        let fitted: Vec<_> = curve.iter().map(|s| (s.x, s.y, s.points)).collect();
        let pooled = 13.0 / 4.0;
        assert_eq!(
            fitted,
            [
                (0.0, 1.0, 1),
                (1.0, pooled, 2),
                (2.0, pooled, 1),
                (3.0, pooled, 1)
            ]
        );
        assert_eq!(isotonic(&[]), []);
    }

    #[test]
    fn a_limit_is_where_nine_in_ten_are_below_it() {
        let mut random = Random(7);
        let (mut misses, mut off) = (0, 0.0);
        for _ in 0..60 {
            let noisy = |i: i32| {
                let x = 3.0 + f64::from(i % 11 - 5) * 0.01;
                let y = 4.0 * (x - 3.0) + 0.05 * random.normal();
                Point { x, y }
            };
            let points: Vec<Point> = (0..80).map(noisy).collect();
            let found = estimate(&points).expect("both sides");
            let truth = 3.0 - 1.2816 * 0.05 / 4.0;
            off += found.x - truth;
            misses += i32::from((found.x - truth).abs() > 2.0 * found.error);
        }
        assert!(
            misses <= 8,
            "{misses} of 60 are further off than two errors"
        );
        assert!((off / 60.0).abs() < 0.002, "{}", off / 60.0);
    }

    #[test]
    fn a_few_outliers_move_it_little() {
        let mut list: Vec<Point> = (0..40)
            .map(|i| {
                let x = f64::from(i % 9 - 4) * 0.01;
                let y = 5.0 * x + 0.01 * f64::from(i % 3 - 1);
                Point { x, y }
            })
            .collect();
        let before = estimate(&list).expect("both sides").x;
        list.push(Point { x: -0.01, y: 3.0 });
        let after = estimate(&list).expect("both sides").x;
        assert!((before - after).abs() < 0.005, "{before} {after}");
    }

    #[test]
    fn points_on_one_side_tell_no_limit() {
        assert_eq!(
            estimate(&points(&[(0.0, -1.0), (1.0, -0.5), (2.0, -0.1)])),
            None
        );
        assert_eq!(estimate(&[]), None);
    }
}
