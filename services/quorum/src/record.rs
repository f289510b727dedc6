use std::collections::BTreeSet;

/// How far the data of a node go: `lsn` in the history of the primary of `term`. Positions of one term are comparable;
/// those of two are not, because the older history may have an end that the newer one lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Position {
    /// Term of the primary whose history the data are a beginning of.
    pub term: u64,
    /// What is on disk, in the store's own count.
    pub lsn: u64,
}

/// Whose copies count: a write is acknowledged once `needed` of `standbys` have it on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Copies<N> {
    /// The standbys that count. The primary is none of them.
    pub standbys: BTreeSet<N>,
    /// 0: writes are acknowledged with the copy of the primary alone, so nobody else has all of them.
    pub needed: usize,
}

impl<N: Clone + Ord> Copies<N> {
    /// The copy of the primary alone.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            standbys: BTreeSet::new(),
            needed: 0,
        }
    }

    /// So many of these standbys, or all of them if there are fewer.
    #[must_use]
    pub fn of(standbys: BTreeSet<N>, wanted: usize) -> Self {
        let needed = wanted.min(standbys.len());
        if needed == 0 {
            return Self::none();
        }
        Self { standbys, needed }
    }

    /// Standbys that must promise to follow no longer: each set of `needed` has one of any so many. `None` if no number of
    /// promises will do, since the primary may have acknowledged what it alone has.
    #[must_use]
    pub fn promises(&self) -> Option<usize> {
        (self.needed > 0).then(|| (self.standbys.len() + 1).saturating_sub(self.needed))
    }

    /// Whether a promotion that reads these copies loses nothing that a primary acknowledges with `others`.
    #[must_use]
    pub fn cover(&self, others: &Self) -> bool {
        let unknown = others.standbys.difference(&self.standbys).count();
        self.needed == 0 || self.needed + unknown <= others.needed
    }

    /// Copies that cover both.
    #[must_use]
    pub(crate) fn joined(&self, other: &Self) -> Self {
        let standbys = self.standbys.union(&other.standbys).cloned().collect();
        Self::of(standbys, self.needed.min(other.needed))
    }

    /// How far each of so many standbys is: what a primary that has `own` may acknowledge. `flushed` is what a standby has
    /// said in the term of this primary; as long as it has said nothing, it may follow another one by now. `None` if too few
    /// have: then the primary does not serve either.
    #[must_use]
    pub fn acknowledged(&self, own: u64, flushed: impl Fn(&N) -> Option<u64>) -> Option<u64> {
        if self.needed == 0 {
            return Some(own);
        }
        let mut positions: Vec<u64> = self.standbys.iter().filter_map(flushed).collect();
        positions.sort_unstable_by(|a, b| b.cmp(a));
        positions.get(self.needed - 1).map(|lsn| own.min(*lsn))
    }
}

/// Who is primary, and what counts there. The newest one that a majority of voters has is the truth.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record<N> {
    /// One promotion. No two proposers use the same number, and none uses one twice.
    pub term: u64,
    /// Number of the change within the term.
    pub change: u64,
    /// The node that may acknowledge writes in this term.
    pub primary: N,
    /// What the primary had when it was chosen: the beginning of the history of its term.
    pub start: Position,
    /// Whose copies count.
    pub copies: Copies<N>,
}

impl<N> Record<N> {
    /// The newer of two records has the higher one.
    #[must_use]
    pub const fn version(&self) -> (u64, u64) {
        (self.term, self.change)
    }

    /// Where data are in the history of this record, comparable with others in it. `None` if they are not in it: they
    /// lack its beginning, or have an end of their own.
    #[must_use]
    pub fn place(&self, position: Position) -> Option<u64> {
        let is_in = position.term == self.term || position == self.start;
        is_in.then_some(position.lsn)
    }
}
