//! Times in which an accelerator took no samples, because its engine's server was away. A data
//! structure; the caller passes the clock.

use record::LossRecord;

/// Most absences recorded separately; later ones are added to the last.
const MOST: usize = 256;

#[derive(Debug)]
struct Absence {
    at_ns: u64,
    why: String,
    /// Samples that the accelerator gave back.
    again: u64,
    back_ns: Option<u64>,
}

/// The absences of one accelerator.
#[derive(Debug, Default)]
pub(crate) struct Absences {
    all: Vec<Absence>,
    is_open: bool,
    /// Samples given back before the heartbeat with the reason.
    early: u64,
}

impl Absences {
    /// Whether the accelerator takes no samples now.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Counts a sample that the accelerator gave back.
    pub(crate) fn add_sample(&mut self) {
        match self.all.last_mut().filter(|_| self.is_open) {
            Some(open) => open.again += 1,
            None => self.early += 1,
        }
    }

    /// Begins an absence, unless one is open. Returns whether it is news.
    pub(crate) fn begin(&mut self, now_ns: u64, why: &str) -> bool {
        if self.is_open {
            return false;
        }
        self.is_open = true;
        let again = std::mem::take(&mut self.early);
        if self.all.len() < MOST {
            self.all.push(Absence {
                at_ns: now_ns,
                why: why.to_owned(),
                again,
                back_ns: None,
            });
        } else if let Some(last) = self.all.last_mut() {
            last.back_ns = None;
            last.again += again;
        }
        true
    }

    /// Ends the open absence: the accelerator takes samples, or (`back` false) it is lost. Returns
    /// whether there was one.
    pub(crate) fn end(&mut self, back: bool, now_ns: u64) -> bool {
        let was_open = std::mem::take(&mut self.is_open);
        if let Some(last) = self.all.last_mut().filter(|_| was_open && back) {
            last.back_ns = Some(now_ns);
        }
        was_open
    }

    pub(crate) fn records(
        &self,
        node: &str,
        in_run: impl Fn(u64) -> Option<f64>,
    ) -> Vec<LossRecord> {
        let record = |a: &Absence| LossRecord {
            node: node.to_owned(),
            whole: true,
            at_s: in_run(a.at_ns),
            why: a.why.clone(),
            losses: 1,
            again: a.again,
            back: a.back_ns.is_some(),
            back_s: a.back_ns.and_then(&in_run),
            ..LossRecord::default()
        };
        self.all.iter().map(record).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absence_is_on_record_with_its_samples_and_its_end() {
        let mut a = Absences::default();
        a.add_sample();
        assert!(!a.end(true, 1) && a.begin(2, "HTTP 503") && !a.begin(3, "HTTP 503"));
        (0..4).for_each(|_| a.add_sample());
        assert!(a.is_open() && a.end(true, 9) && !a.is_open());
        assert!(a.begin(20, "gone") && a.end(false, 30));
        let records = a.records("acc", |ns| Some(ns as f64));
        assert_eq!(
            records[0].to_string(),
            "acc lost 2.0 s into the run: HTTP 503; 5 samples were in flight; back 9.0 s into the run"
        );
        assert_eq!((records[1].back, records[1].at_s), (false, Some(20.0)));
        (0..2 * MOST as u64).for_each(|i| assert!(a.begin(i, "again") && a.end(true, i)));
        assert_eq!(a.records("acc", |_| None).len(), MOST);
    }
}
