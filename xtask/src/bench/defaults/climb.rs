//! The highest rate that holds, begun from a guess: as few runs as will do for comparing settings.

/// How near the lowest rate that failed must be to the highest that held.
const NEAR: f64 = 1.05;
/// Tries of one rate before it counts as failed.
const TRIES: u32 = 2;
/// Rate below which nobody goes on.
const LEAST: f64 = 1000.0;

/// The highest rate at which `held` says so, within 5 %; begins at `first`, and steps by a quarter
/// until it lies between two. 0 where none holds.
///
/// # Errors
/// Whatever `held` meets.
pub fn climb<E>(first: f64, mut held: impl FnMut(f64) -> Result<bool, E>) -> Result<f64, E> {
    let (mut low, mut high): (Option<f64>, Option<f64>) = (None, None);
    let mut rate = first;
    let mut step = 1.25;
    loop {
        let mut ok = false;
        for _ in 0..TRIES {
            ok = ok || held(rate)?;
        }
        if ok {
            low = Some(rate);
        } else {
            high = Some(rate);
        }
        rate = match (low, high) {
            (Some(low), Some(high)) if high <= low * NEAR => return Ok(low),
            (Some(low), Some(high)) => (low * high).sqrt(),
            (Some(low), None) => low * step,
            (None, Some(high)) => high / step,
            (None, None) => rate,
        };
        step = f64::min(step * step, 4.0);
        if rate < LEAST {
            return Ok(0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_near_from_either_side() {
        for first in [2_000.0, 90_000.0, 110_000.0, 5_000_000.0] {
            let mut runs = 0;
            let found = climb(first, |rate| {
                runs += 1;
                Ok::<_, ()>(rate <= 100_000.0)
            });
            let found = found.expect("no errors");
            assert!(runs < 40, "{runs} runs from {first}");
            assert!((100_000.0 / NEAR..=100_000.0).contains(&found), "{found}");
        }
        assert_eq!(climb(5_000.0, |_| Ok::<_, ()>(false)), Ok(0.0));
    }
}
