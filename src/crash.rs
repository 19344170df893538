//! The boundaries between two effects at which a test may have the process die: as by SIGKILL, in the middle of whatever else is going on.
//! Only builds for tests have them (feature `test-switches`); in others nothing is left of a point.
//!
//! Which of them fire, and when, is told by the variable `FAILPOINTS` in the words of the crate `fail`: `settle.committed=5*off->return` dies after
//! the sixth commit of settlements.

/// A boundary. What is durable on the one side of it has not led to what comes on the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// The gate has admitted a batch; Postgres knows nothing of it.
    ReserveAdmitted,
    /// A batch of orders is written, and not committed.
    ReserveBeforeCommit,
    /// It is committed; nobody has been answered, and nobody charged.
    ReserveCommitted,
    /// The ids of orders that never came to be are occupied; their reservations are not given back.
    RejectCommitted,
    /// An order is claimed; its charge has not left.
    Claimed,
    /// The claim is about to be made use of: the charge leaves with the next step.
    ChargeBeforeSend,
    /// The provider has answered a charge; nothing of it is written down.
    ChargeAnswered,
    /// The capture is written down as begun; it has not left.
    CaptureBeforeSend,
    /// The provider has answered a capture; nothing of it is written down.
    CaptureAnswered,
    /// A claim that was too old is taken over; nobody was asked yet.
    TakenOver,
    /// Settlements are written, and not committed.
    SettleBeforeCommit,
    /// They are committed; the gate doesn't know of what they release.
    SettleCommitted,
    /// The gate knows of releases; their notes are still there.
    ReleaseTold,
    /// Deliveries of webhooks are written, and not committed.
    InboxBeforeCommit,
    /// They are committed; the provider has no answer.
    InboxCommitted,
    /// An event is applied to its order; it is still due.
    EventApplied,
    /// A refund is promised; nobody was answered, and nothing is paid.
    RefundPromised,
    /// The provider has paid a refund; nothing of it is written down.
    RefundAnswered,
    /// A refund is written down as paid; the gate doesn't know of the units that go back.
    RefundNoted,
    /// The provider has said what became of a charge whose order is over; nothing of it is written down.
    ResolveAnswered,
    /// A sale's epoch is raised; the gate is not loaded.
    EpochRaised,
    /// The gate is loaded; the engine hasn't gone on.
    GateLoaded,
    /// A sale is called off; nothing of it is released or paid back.
    SaleCancelled,
}

impl Point {
    /// All of them.
    pub const ALL: [Self; 23] = [
        Self::ReserveAdmitted,
        Self::ReserveBeforeCommit,
        Self::ReserveCommitted,
        Self::RejectCommitted,
        Self::Claimed,
        Self::ChargeBeforeSend,
        Self::ChargeAnswered,
        Self::CaptureBeforeSend,
        Self::CaptureAnswered,
        Self::TakenOver,
        Self::SettleBeforeCommit,
        Self::SettleCommitted,
        Self::ReleaseTold,
        Self::InboxBeforeCommit,
        Self::InboxCommitted,
        Self::EventApplied,
        Self::RefundPromised,
        Self::RefundAnswered,
        Self::RefundNoted,
        Self::ResolveAnswered,
        Self::EpochRaised,
        Self::GateLoaded,
        Self::SaleCancelled,
    ];

    /// Its name in `FAILPOINTS`.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReserveAdmitted => "reserve.admitted",
            Self::ReserveBeforeCommit => "reserve.before_commit",
            Self::ReserveCommitted => "reserve.committed",
            Self::RejectCommitted => "reject.committed",
            Self::Claimed => "claimed",
            Self::ChargeBeforeSend => "charge.before_send",
            Self::ChargeAnswered => "charge.answered",
            Self::CaptureBeforeSend => "capture.before_send",
            Self::CaptureAnswered => "capture.answered",
            Self::TakenOver => "taken_over",
            Self::SettleBeforeCommit => "settle.before_commit",
            Self::SettleCommitted => "settle.committed",
            Self::ReleaseTold => "release.told",
            Self::InboxBeforeCommit => "inbox.before_commit",
            Self::InboxCommitted => "inbox.committed",
            Self::EventApplied => "event.applied",
            Self::RefundPromised => "refund.promised",
            Self::RefundAnswered => "refund.answered",
            Self::RefundNoted => "refund.noted",
            Self::ResolveAnswered => "resolve.answered",
            Self::EpochRaised => "epoch.raised",
            Self::GateLoaded => "gate.loaded",
            Self::SaleCancelled => "sale.cancelled",
        }
    }
}

/// The process is at this boundary: in a build for tests it dies here, if that was asked for.
#[cfg(not(feature = "test-switches"))]
#[inline]
pub fn at(_: Point) {}

/// The process is at this boundary: it dies here, if that was asked for.
#[cfg(feature = "test-switches")]
pub fn at(point: Point) {
    fail::fail_point!(point.name(), |_| die(point));
}

/// Reads from the environment where the process is to die. Keep what is returned until the end.
#[cfg(feature = "test-switches")]
pub fn armed() -> fail::FailScenario<'static> {
    fail::FailScenario::setup()
}

#[cfg(feature = "test-switches")]
fn die(point: Point) {
    use std::io::Write;

    // For whoever reads the log afterwards; nothing is flushed, closed or drained.
    writeln!(std::io::stderr(), "dies at {}", point.name()).ok();
    nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::Signal::SIGKILL).ok();
    loop {
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_has_a_name_of_its_own() {
        let names: HashSet<&str> = Point::ALL.into_iter().map(Point::name).collect();
        assert_eq!(names.len(), Point::ALL.len());
    }
}
