//! What the scheduler would do with a claim that it is given back: it knows of room what is published, and nothing else.

/// What is known of the node that has no room for a volume.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// How large the volume shall be.
    pub(super) size: u64,
    /// What the node tells that it has left, if it offers the class at all.
    pub(super) told: Option<u64>,
    /// The most that is published of it.
    pub(super) published: Option<u64>,
}

/// Where a claim would go that is given back now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// Not to this node: nothing that is published says that it has room.
    Elsewhere,
    /// To the same node: what it tells is about to be published.
    Here,
    /// To the same node, unless it is about to tell that it has less.
    HereUntilTold,
}

/// Where a claim would go that is given back now.
pub(super) fn choice(room: Room) -> Choice {
    let fits = |left: Option<u64>| left.is_some_and(|left| left >= room.size);
    match (fits(room.published), room.told) {
        (false, _) => Choice::Elsewhere,
        (true, Some(told)) if told < room.size => Choice::Here,
        (true, _) => Choice::HereUntilTold,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_given_back_when_the_scheduler_would_not_choose_the_same_node_again() {
        let choice = |told, published| choice(Room { size: 10, told, published });
        // Published is what the node has left, or nothing of it any more.
        assert_eq!(choice(Some(9), Some(9)), Choice::Elsewhere);
        assert_eq!(choice(Some(9), None), Choice::Elsewhere);
        assert_eq!(choice(None, None), Choice::Elsewhere);
        // The node has told that it has less, and the scheduler does not know yet.
        assert_eq!(choice(Some(9), Some(10)), Choice::Here);
        // Neither has the node told, yet.
        assert_eq!(choice(Some(10), Some(10)), Choice::HereUntilTold);
        assert_eq!(choice(None, Some(10)), Choice::HereUntilTold);
    }
}
