//! The plain searches, to compare with: what they find goes by verdicts alone, one for each rate.

use crate::system::{Halt, Setting, System, Why};

fn valid(system: &mut dyn System, rate: f64) -> Result<bool, Halt> {
    let setting = Setting {
        rate,
        seconds: 1.0,
        ..Setting::default()
    };
    Ok(system.run(Why::Near, &setting)?.valid)
}

/// Up in doublings (or down in halves), then halving the gap on the scale of logarithms until it is
/// 3 %: the highest rate that was VALID.
///
/// # Errors
/// Those of the system.
pub fn bisection(system: &mut dyn System, first: f64) -> Result<Option<f64>, Halt> {
    let (mut held, mut failed): (Option<f64>, Option<f64>) = (None, None);
    let mut rate = first;
    while rate > first / 1000.0 {
        let place = if valid(system, rate)? {
            &mut held
        } else {
            &mut failed
        };
        *place = Some(rate);
        rate = match (held, failed) {
            (Some(h), Some(f)) if f <= h * 1.03 => break,
            (Some(h), Some(f)) => (h * f).sqrt(),
            (Some(h), None) => h * 2.0,
            (None, _) => rate / 2.0,
        };
    }
    Ok(held)
}

/// As LoadGen's find-peak goes: it begins at a rate that is to be VALID, doubles it until one is
/// not,
/// and halves the gap on the plain scale, here until it is 1 %. A first rate that is not VALID ends
/// it.
///
/// # Errors
/// Those of the system.
pub fn find_peak(system: &mut dyn System, first: f64) -> Result<Option<f64>, Halt> {
    let mut held = first;
    if !valid(system, held)? {
        return Ok(None);
    }
    let mut failed = held * 2.0;
    while valid(system, failed)? {
        held = failed;
        failed *= 2.0;
    }
    while failed - held > held / 100.0 {
        let rate = f64::midpoint(held, failed);
        *(if valid(system, rate)? {
            &mut held
        } else {
            &mut failed
        }) = rate;
    }
    Ok(Some(held))
}
