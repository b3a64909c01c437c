//! The settings of a run. Entries of a list, such as NICs, share a row for each key that is equal.

use record::{RunFolder, SettingRecord};

use crate::model::{Cell, Part, boxed, table};

/// A name of a list entry's key: the list, the index, the rest.
fn entry(name: &str) -> Option<(&str, u64, &str)> {
    let (list, rest) = name.split_once('[')?;
    let (index, rest) = rest.split_once(']')?;
    Some((list, index.parse().ok()?, rest))
}

/// Indices in the notation of core lists: `0-2,5`.
fn indices(mut all: Vec<u64>) -> String {
    all.sort_unstable();
    let run = |run: &[u64]| match run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run[0].to_string(),
    };
    let runs = all.chunk_by(|a, b| a + 1 == *b).map(run);
    runs.collect::<Vec<_>>().join(",")
}

/// Joins the rows of a list's entries that are the same: `nics[0-31].slots`. The first row's value
/// stays.
pub fn joined<'a, T>(
    rows: impl IntoIterator<Item = (&'a str, T)>,
    is_same: impl Fn(&T, &T) -> bool,
) -> Vec<(String, T)> {
    let mut all: Vec<((&str, &str), Vec<u64>, T)> = Vec::new();
    for (name, row) in rows {
        let (key, index) = match entry(name) {
            Some((list, index, rest)) => ((list, rest), Some(index)),
            None => ((name, ""), None),
        };
        let same = |(of, _, first): &&mut ((&str, &str), Vec<u64>, T)| {
            index.is_some() && *of == key && is_same(first, &row)
        };
        match all.iter_mut().find(same) {
            Some((_, at, _)) => at.extend(index),
            None => all.push((key, index.into_iter().collect(), row)),
        }
    }
    let named = |((list, rest), at, row): ((&str, &str), Vec<u64>, T)| match at.is_empty() {
        true => (list.to_owned(), row),
        false => (format!("{list}[{}]{rest}", indices(at)), row),
    };
    all.into_iter().map(named).collect()
}

/// The settings with equal entries joined, whatever line of a file sets them.
pub fn rows<'a>(
    all: impl IntoIterator<Item = &'a SettingRecord>,
) -> Vec<(String, &'a SettingRecord)> {
    fn values(s: &SettingRecord) -> (&str, Option<&str>) {
        (&s.given.value, s.overrode.first().map(|o| &*o.value))
    }
    let named = all.into_iter().map(|s| (s.name.as_str(), s));
    joined(named, |a, b| values(a) == values(b))
}

/// Changed settings first, then those left at their default.
pub fn picture(run: &RunFolder) -> Part {
    let r = &run.summary.run;
    let row = |(name, s): (String, &SettingRecord)| {
        let instead = s.overrode.first();
        let instead = instead
            .map(|o| format!("{} ({})", o.value, o.from))
            .unwrap_or_default();
        let name = format!("`{name}`");
        [name, s.given.value.clone(), s.given.from.clone(), instead]
            .map(Cell::Words)
            .to_vec()
    };
    let (set, others): (Vec<_>, Vec<_>) = r.settings.iter().partition(|s| s.is_set());
    let of = |all: Vec<&SettingRecord>| {
        let rows = rows(all).into_iter().map(row);
        table("setting|value|from|instead of", rows.collect())
    };
    let mut parts = Vec::new();
    if !set.is_empty() {
        parts.push(of(set));
    }
    if !others.is_empty() {
        let title = format!("{} at their default, or without effect", others.len());
        parts.push(Part::Folded(title, vec![of(others)]));
    }
    parts.push(Part::List(r.setting_notes.clone()));
    boxed("Settings", parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_entries_of_a_list_share_a_row() {
        let nic = |i: u64| (format!("nics[{i}].slots"), if i == 3 { 32 } else { 64 });
        let mut all: Vec<(String, u64)> = (0..8).map(nic).collect();
        all.insert(1, ("nics[0].cpus".to_owned(), 64));
        all.push(("nic_threads".to_owned(), 64));
        let rows = all.iter().map(|(name, value)| (name.as_str(), value));
        let shown = joined(rows, |a, b| a == b).into_iter();
        let shown: Vec<_> = shown
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        let expected = [
            "nics[0-2,4-7].slots 64",
            "nics[0].cpus 64",
            "nics[3].slots 32",
            "nic_threads 64",
        ];
        assert_eq!(shown, expected);
    }
}
