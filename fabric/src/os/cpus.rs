//! Lists of cores in the kernel's notation: `0-15,128-143`.

use std::fmt;

/// Core numbers in ascending order, without duplicates.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CpuList(Vec<usize>);

/// Core numbers are below this limit, which exceeds that of every kernel build.
const MOST: usize = 1 << 16;

/// Error of [`CpuList::parse`]: the text is no list of cores.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no list of cores; the kernel writes them as in 0-15,128-143")]
pub struct BadCpuList(pub String);

impl CpuList {
    /// Parses the kernel's notation; an empty text is an empty list.
    ///
    /// # Errors
    /// [`BadCpuList`] quotes the text.
    pub fn parse(text: &str) -> Result<Self, BadCpuList> {
        let bad = || BadCpuList(text.trim().chars().take(64).collect());
        let mut cpus = Vec::new();
        for part in text.trim().split(',').filter(|p| !p.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: usize = first.trim().parse().map_err(|_| bad())?;
            let last: usize = last.trim().parse().map_err(|_| bad())?;
            if first > last || last >= MOST {
                return Err(bad());
            }
            cpus.extend(first..=last);
        }
        Ok(cpus.into_iter().collect())
    }

    /// The core numbers, ascending.
    pub fn as_slice(&self) -> &[usize] {
        &self.0
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `cpu` is in the list.
    pub fn contains(&self, cpu: usize) -> bool {
        self.0.binary_search(&cpu).is_ok()
    }
}

impl FromIterator<usize> for CpuList {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        let mut cpus: Vec<usize> = cpus.into_iter().collect();
        cpus.sort_unstable();
        cpus.dedup();
        CpuList(cpus)
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|a, b| a + 1 == *b);
        for (i, run) in runs.enumerate() {
            let comma = if i > 0 { "," } else { "" };
            match run {
                [only] => write!(f, "{comma}{only}")?,
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_the_kernel_does_not_write_is_refused() {
        for bad in ["a", "1-", "-1", "3-1", "1,,x", "0-99999999999", "0-70000"] {
            let error = CpuList::parse(bad).expect_err(bad);
            assert!(error.to_string().contains(bad));
        }
        assert!(CpuList::parse("\n").expect("empty").is_empty());
    }

    proptest! {
        #[test]
        fn it_survives_being_written(cpus in prop::collection::btree_set(0usize..300, 0..60)) {
            let list = CpuList(cpus.iter().copied().collect());
            prop_assert_eq!(CpuList::parse(&list.to_string()), Ok(list.clone()));
            prop_assert!((0..300).all(|c| list.contains(c) == cpus.contains(&c)));
        }

        #[test]
        fn it_never_panics(text in "[0-9,\\- a]{0,12}") {
            let _ = CpuList::parse(&text);
        }
    }
}
