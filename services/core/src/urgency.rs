//! Priority of work on a cluster.

/// Priority of a pass and of the calls that it makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Everything that nobody waits for.
    Bulk,
    /// Node failures and take-overs.
    Urgent,
}

impl Urgency {
    /// The value of the metric label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bulk => "bulk",
            Self::Urgent => "urgent",
        }
    }
}
