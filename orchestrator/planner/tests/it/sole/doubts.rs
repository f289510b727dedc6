//! Nodes of which nobody knows whether they have the permission.

use drover_core::node::InFlight;

use super::{
    Did::{Allow, Forgot, Recorded, Revoke},
    alone, db, did, dies, later, ready, recorded, run, set_ready, trouble,
};
use crate::world::World;

/// Why nobody knows whether a node has the permission.
#[derive(Clone, Copy, Debug)]
enum Doubt {
    /// The process ended when it was recorded, before the node was asked.
    Unsent,
    /// The process ended before the node answered.
    Unheard,
    /// The answer was lost.
    Lost,
}

const DOUBTS: [Doubt; 3] = [Doubt::Unsent, Doubt::Unheard, Doubt::Lost];

/// A store whose standby is not Ready, and of whose active node nobody knows whether it has the permission.
fn doubtful(doubt: Doubt) -> World {
    let mut world = ready(db(1));
    set_ready(&mut world, 2, false);
    if let Doubt::Unsent = doubt {
        // Nothing is called.
        assert_eq!(did(&world.step()), [Recorded(1), Allow(1)]);
    } else {
        assert_eq!(run(&mut world), [Recorded(1), Allow(1)]);
    }
    if let Doubt::Lost = doubt {
        world.answer_sole(1, Err(false));
        return world;
    }
    for node in &mut world.state.nodes {
        node.in_flight = InFlight::unknown(&node.record);
    }
    world.state.doubt_soles();
    world
}

#[test]
fn what_may_have_been_given_is_recorded_until_it_is_taken_back() {
    for doubt in DOUBTS {
        let mut world = doubtful(doubt);
        for _ in 0..2 {
            assert_eq!(later(&mut world), [Allow(1)], "{doubt:?}");
            // That says nothing of what was asked for before.
            world.answer_sole(1, Err(true));
            assert_eq!(run(&mut world), [], "{doubt:?}");
            assert_eq!(recorded(&world), Some(1), "{doubt:?}");
        }
        set_ready(&mut world, 2, true);
        for outcome in [Err(true), Err(false)] {
            assert_eq!(later(&mut world), [Revoke(1)], "{doubt:?}");
            world.answer_sole(1, outcome);
            assert_eq!(run(&mut world), [], "{doubt:?}");
            assert_eq!(recorded(&world), Some(1), "{doubt:?}");
        }
        assert_eq!(later(&mut world), [Revoke(1)], "{doubt:?}");
        world.answer_sole(1, Ok(()));
        assert_eq!(run(&mut world), [Forgot], "{doubt:?}");
    }
}

#[test]
fn nobody_takes_over_from_who_may_have_the_permission() {
    for doubt in DOUBTS {
        let mut world = doubtful(doubt);
        set_ready(&mut world, 2, true);
        dies(&mut world, 1);
        assert_eq!(run(&mut world), [], "{doubt:?}");
        assert_eq!(trouble(&world), Some("SoleWriter"), "{doubt:?}");
    }
}

#[test]
fn a_revocation_whose_standby_is_lost_meanwhile_leaves_the_permission_in_doubt() {
    let mut world = alone(db(1));
    set_ready(&mut world, 2, true);
    assert_eq!(run(&mut world), [Revoke(1)]);
    set_ready(&mut world, 2, false);
    assert_eq!(run(&mut world), [], "one thing is asked at a time");
    world.answer_sole(1, Err(true));
    assert_eq!(later(&mut world), [Allow(1)]);
    world.answer_sole(1, Err(true));
    assert_eq!(run(&mut world), []);
    assert_eq!(recorded(&world), Some(1), "it may still have the first one");
}
