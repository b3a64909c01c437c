//! Values with numbers. A number is never used twice, so a stale one finds nothing.

use slab::Slab;

/// Numbered values: the number's low half is the place, its high half the place's use.
#[derive(Debug)]
pub struct Numbered<T> {
    places: Slab<(u32, T)>,
    used: u32,
}

impl<T> Numbered<T> {
    /// No value.
    pub const fn new() -> Self {
        Numbered {
            places: Slab::new(),
            used: 0,
        }
    }

    /// Adds a value and returns its number, which is not 0.
    pub fn add(&mut self, value: T) -> u64 {
        self.used = self.used.wrapping_add(1).max(1);
        let place = self.places.insert((self.used, value));
        u64::from(self.used) << 32 | place as u64
    }

    /// The value of a number.
    pub fn get(&mut self, number: u64) -> Option<&mut T> {
        let own = self.places.get_mut(number as u32 as usize);
        own.filter(|(used, _)| u64::from(*used) == number >> 32)
            .map(|(_, value)| value)
    }

    /// Takes the value of a number out.
    pub fn take(&mut self, number: u64) -> Option<T> {
        self.get(number)?;
        Some(self.places.remove(number as u32 as usize).1)
    }

    /// Takes all values out.
    pub fn take_all(&mut self) -> Vec<T> {
        self.places.drain().map(|(_, value)| value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_an_earlier_value_finds_nothing() {
        let mut all = Numbered::new();
        let first = all.add('a');
        assert_eq!(all.take(first), Some('a'));
        let second = all.add('b');
        assert_eq!(first as u32, second as u32, "the same place");
        assert_eq!(all.get(first), None);
        assert_eq!(all.take(first), None);
        assert_eq!(all.get(second), Some(&mut 'b'));
    }
}
