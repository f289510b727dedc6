//! Parts of records that few of them have.

use std::ops::{Deref, DerefMut};

/// A part that most records lack, which costs them a pointer only. It reads as [`Empty::EMPTY`] until something is put
/// into it.
#[derive(Clone, Debug)]
pub struct Rare<T>(Option<Box<T>>);

/// What a part is that a record lacks.
pub trait Empty: Default + PartialEq + 'static {
    /// The same as its default.
    const EMPTY: &'static Self;
}

impl<T: Empty> Rare<T> {
    /// Takes what is there, and leaves it empty.
    pub fn take(&mut self) -> T {
        self.0.take().map_or_else(T::default, |part| *part)
    }
}

impl<T> Default for Rare<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Empty> From<T> for Rare<T> {
    fn from(part: T) -> Self {
        Self((part != *T::EMPTY).then(|| Box::new(part)))
    }
}

impl<T: Empty> Deref for Rare<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::EMPTY)
    }
}

impl<T: Empty> DerefMut for Rare<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

impl<T: Empty> PartialEq for Rare<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, Default, PartialEq)]
    struct Part {
        size: u8,
    }

    impl Empty for Part {
        const EMPTY: &'static Self = &Self { size: 0 };
    }

    #[test]
    fn a_part_reads_as_empty_until_something_is_put_into_it() {
        let mut part = Rare::<Part>::default();
        assert_eq!(part.size, 0);
        part.size = 3;
        assert_eq!((part.size, part.clone().size), (3, 3));
    }

    #[test]
    fn an_empty_part_equals_one_that_was_never_written() {
        let mut part = Rare::from(Part { size: 1 });
        assert_ne!(part, Rare::default());
        part.size = 0;
        assert_eq!(part, Rare::default());
        assert!(Rare::from(Part::default()).0.is_none());
    }
}
