//! The table of rooms: `| where | what | knows |`.
//!
//! *where* is one name or several in backticks, `qdl::fabric` or `frontend`. *knows* is `nothing`,
//! `anything`, or names separated by commas, of rooms (`fabric`, `qdl::fabric`) or crates; `all of
//! the above` stands for the rooms in the rows above.

use std::collections::BTreeSet;
use std::fmt;

use super::LIBRARY;

/// What a row allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Knows {
    Anything,
    These(BTreeSet<String>),
}

impl Knows {
    pub fn allows(&self, name: &str) -> bool {
        match self {
            Knows::Anything => true,
            Knows::These(names) => names.contains(name),
        }
    }
}

impl fmt::Display for Knows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Knows::Anything => f.write_str("anything"),
            Knows::These(names) if names.is_empty() => f.write_str("nothing"),
            Knows::These(names) => {
                let names: Vec<_> = names.iter().map(String::as_str).collect();
                f.write_str(&names.join(", "))
            }
        }
    }
}

/// The table.
#[derive(Debug)]
pub struct Table {
    rows: Vec<(String, Knows)>,
    /// The crates that some room of the library may know: what the library may depend on.
    pub of_library: Knows,
}

impl Table {
    /// Reads the one table of a document whose header is `where`, `what`, `knows`.
    pub fn read(document: &str) -> Result<Self, String> {
        let mut lines = document.lines().map(cells).skip_while(|cells| {
            cells.as_deref().map(|c| c.join(" ")) != Some("where what knows".to_owned())
        });
        if lines.next().is_none() {
            return Err("it has no table with the header `| where | what | knows |`".to_owned());
        }
        let mut rows: Vec<(String, Knows)> = Vec::new();
        // The line of dashes comes first.
        for cells in lines.skip(1).map_while(|cells| cells) {
            let [names, _, knows] = &cells[..] else {
                return Err(format!("a row of rooms has {} cells, not 3", cells.len()));
            };
            let knows = read_knows(knows, &rows);
            for name in words(names) {
                if rows.iter().any(|(row, _)| *row == name) {
                    return Err(format!("`{name}` has two rows"));
                }
                rows.push((name, knows.clone()));
            }
        }
        // A name without a crate in front is a room of the library, where there is one.
        let rooms: BTreeSet<String> = rows.iter().map(|(row, _)| row.clone()).collect();
        for (_, knows) in &mut rows {
            if let Knows::These(names) = knows {
                let full = |name: &String| match format!("{LIBRARY}::{name}") {
                    room if rooms.contains(&room) => room,
                    _ => name.clone(),
                };
                *names = names.iter().map(full).collect();
            }
        }
        let of_rooms = rows.iter().filter(|(row, _)| row.contains("::"));
        let of_library = of_rooms
            .filter_map(|(_, knows)| match knows {
                Knows::These(names) => Some(names),
                Knows::Anything => None,
            })
            .flatten()
            .filter(|name| !name.contains("::"))
            .cloned();
        Ok(Self {
            of_library: Knows::These(of_library.collect()),
            rows,
        })
    }

    /// What the room or crate of this name may know.
    pub fn row(&self, name: &str) -> Option<&Knows> {
        let found = self.rows.iter().find(|(row, _)| row == name);
        found.map(|(_, knows)| knows)
    }

    /// The names in the first column.
    pub fn rows(&self) -> impl Iterator<Item = &str> {
        self.rows.iter().map(|(row, _)| row.as_str())
    }

    /// Names in the last column that are neither a row nor a crate.
    pub fn unknown_words(&self, members: &[String]) -> Vec<String> {
        let mut complaints = Vec::new();
        for (row, knows) in &self.rows {
            let Knows::These(names) = knows else { continue };
            for name in names {
                if self.row(name).is_none() && !members.contains(name) {
                    complaints.push(format!(
                        "{}: `{row}` knows `{name}`, which is neither a room nor a crate",
                        super::TABLE
                    ));
                }
            }
        }
        complaints
    }
}

/// The cells of a line of a table.
fn cells(line: &str) -> Option<Vec<String>> {
    let inside = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    Some(inside.split('|').map(|c| c.trim().to_owned()).collect())
}

/// Names separated by commas, without their backticks.
fn words(cell: &str) -> impl Iterator<Item = String> {
    cell.split(',')
        .map(|word| word.trim().trim_matches('`').to_owned())
        .filter(|word| !word.is_empty())
}

fn read_knows(cell: &str, above: &[(String, Knows)]) -> Knows {
    let mut names = BTreeSet::new();
    for word in words(cell) {
        match word.as_str() {
            "anything" => return Knows::Anything,
            "nothing" => {}
            "all of the above" => {
                let rooms = above.iter().map(|(row, _)| row);
                names.extend(rooms.filter(|row| row.contains("::")).cloned());
            }
            _ => {
                names.insert(word);
            }
        }
    }
    Knows::These(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "text\n\n| a | b |\n| --- | --- |\n\n| where | what | knows |\n| --- | --- | --- |\n";

    fn knows(table: &Table, row: &str) -> String {
        table.row(row).expect("a row").to_string()
    }

    #[test]
    fn names_lists_and_their_short_forms() {
        let table = Table::read(&format!(
            "{HEAD}| `qdl::os` | calls | nothing |\n\
             | `qdl::clock`, `qdl::wire` | small types | os |\n\
             | `qdl::run` | glue | all of the above, `verbs` |\n\
             | `qdl::testkit` | tests | anything |\n\
             | `verbs` | libibverbs | nothing |\n\
             | `frontend` | a program | `qdl`, verbs |\n\ntext | with | bars\n"
        ))
        .expect("sound");
        assert_eq!(knows(&table, "qdl::os"), "nothing");
        assert_eq!(knows(&table, "qdl::wire"), "qdl::os");
        assert_eq!(
            knows(&table, "qdl::run"),
            "qdl::clock, qdl::os, qdl::wire, verbs"
        );
        assert_eq!(knows(&table, "qdl::testkit"), "anything");
        assert_eq!(knows(&table, "frontend"), "qdl, verbs");
        assert_eq!(table.of_library.to_string(), "verbs");
        let members = ["qdl", "verbs", "frontend"].map(str::to_owned);
        assert_eq!(table.unknown_words(&members), [""; 0]);
        assert_eq!(table.unknown_words(&members[1..]).len(), 1);
    }

    #[test]
    fn a_table_that_cannot_be_read_is_an_error() {
        for (rows, part) in [
            ("| `qdl::a` | x |\n", "2 cells"),
            ("| `a` | x | nothing |\n| `a` | x | nothing |\n", "two rows"),
        ] {
            let error = Table::read(&format!("{HEAD}{rows}")).expect_err(rows);
            assert!(error.contains(part), "{error}");
        }
        assert!(Table::read("| where | what |\n").is_err());
    }
}
