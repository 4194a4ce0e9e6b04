//! Every state of small worlds: with all rules no law falls; without any one of them a named one does; and what the rules
//! do not reach is written down as the counterexample that shows it.
//!
//! Larger worlds: `cargo run --release -p fountain-model -- --help`.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a helper of a test fails as the test does"
)]

use std::collections::{BTreeSet, HashMap};

use fountain_actors::domain::machine::MachineStatus;
use fountain_model::laws::{LEDGER, PROMISE_1};
use fountain_model::rules::{Rules, Start, World};
use fountain_model::state::{Age, Standing, State};
use fountain_model::{Action, Protocol};
use stateright::{Checker, HasDiscoveries, Model};

/// The laws that fall, each with the shortest way there.
fn broken(protocol: Protocol) -> HashMap<&'static str, Vec<Action>> {
    let checker = protocol.checker().spawn_bfs().join();
    assert!(checker.unique_state_count() > 10, "an empty world proves nothing");
    let found = checker.discoveries();
    found
        .into_iter()
        .map(|(law, path)| (law, path.into_actions()))
        .collect()
}

/// Looks until this law falls; the way there, or None when it stands in every state.
fn falls(protocol: Protocol, number: &str) -> Option<Vec<Action>> {
    let law = law(number);
    let until = HasDiscoveries::AnyOf(BTreeSet::from([law]));
    let checker = protocol.checker().finish_when(until).spawn_bfs().join();
    checker.discovery(law).map(|path| path.into_actions())
}

/// The law whose name begins so.
fn law(number: &str) -> &'static str {
    let all = fountain_model::laws::properties();
    let named = all.iter().find(|law| law.name.starts_with(number));
    named.unwrap_or_else(|| panic!("no law is called {number}")).name
}

fn holds_everywhere(world: World) {
    let found = broken(Protocol::new(world));
    assert!(found.is_empty(), "in {world:?}: {found:#?}");
}

fn both_ways(world: World) {
    holds_everywhere(world);
    holds_everywhere(World {
        honours_epochs: true,
        ..world
    });
}

#[test]
fn promise_1_and_all_laws_hold_from_the_first_build() {
    both_ways(World::from(Start::New));
}

#[test]
fn promise_1_and_all_laws_hold_around_a_park() {
    both_ways(World::from(Start::Up));
}

#[test]
fn promise_1_and_all_laws_hold_around_a_wake() {
    both_ways(World::from(Start::Asleep));
}

#[test]
fn promise_1_and_all_laws_hold_over_four_claims_and_over_three_faults() {
    for start in [Start::New, Start::Up, Start::Asleep] {
        holds_everywhere(World {
            claims: 4,
            ..World::from(start)
        });
    }
    holds_everywhere(World {
        faults: 3,
        ..World::from(Start::Asleep)
    });
}

#[test]
fn rul_l_22_a_stranger_under_a_minted_name_is_left_alone() {
    holds_everywhere(World {
        faults: 0,
        fences: 0,
        ..World::from(Start::NewBesideStranger)
    });
}

// --- without one rule ---------------------------------------------------------------------------------------------

/// Without the rule, the law falls, whether or not the provider honours epochs, unless only one of them is meant.
fn without(forget: impl Fn(&mut Rules), world: World, number: &str) {
    let mutant = Protocol::new(world).without(forget);
    assert_ne!(mutant.rules, Rules::ALL, "nothing was taken away");
    assert!(falls(mutant, number).is_some(), "{number} stands without the rule");
    assert_eq!(
        falls(Protocol::new(world), number),
        None,
        "{number} falls with the rule"
    );
}

#[test]
fn rul_l_1_without_the_guard_a_thawed_owner_acts_beside_its_successor() {
    without(|rules| rules.guard = false, World::from(Start::Up), "INV-115");
    without(|rules| rules.guard = false, World::from(Start::New), "INV-24");
}

#[test]
fn rul_l_1_without_the_guard_what_an_old_epoch_did_is_never_found() {
    without(
        |rules| rules.guard = false,
        World {
            faults: 1,
            ..World::from(Start::Up)
        },
        "promise 1",
    );
}

#[test]
fn rul_l_5_a_lease_that_a_dropped_call_gives_back_lets_two_calls_meet() {
    without(|rules| rules.lapse_in_flight = false, World::from(Start::Up), "RUL-L-5");
    without(|rules| rules.lapse_in_flight = false, World::from(Start::Up), "INV-50");
}

#[test]
fn rul_l_20_a_delete_that_was_only_accepted_frees_what_still_runs() {
    without(|rules| rules.confirm_deletes = false, World::from(Start::Up), "INV-51");
}

#[test]
fn rul_l_3_a_debt_that_is_dropped_breaks_promise_1_and_the_ledger() {
    without(|rules| rules.keep_debts = false, World::from(Start::Up), "promise 1");
    without(|rules| rules.keep_debts = false, World::from(Start::Asleep), "INV-117");
}

#[test]
fn inv_06_a_write_that_does_not_name_its_epoch_is_an_old_one_s() {
    without(|rules| rules.check_epochs = false, World::from(Start::Up), "INV-06");
    without(|rules| rules.check_epochs = false, World::from(Start::Up), "INV-05");
}

#[test]
fn inv_21_adoption_by_name_alone_builds_on_a_remnant() {
    // A minted name is not met twice; a kept one is, and only the journal knows whose machine stands there. One fault,
    // because with more even the journal does not know (see the limits below).
    let world = World {
        faults: 1,
        chosen_name: true,
        ..World::from(Start::New)
    };
    without(|rules| rules.judge_adoption = false, world, "INV-21");
}

#[test]
fn inv_53_a_claim_that_does_not_read_the_fence_uses_a_doomed_machine() {
    without(|rules| rules.refuse_doomed = false, World::from(Start::Up), "INV-53");
}

#[test]
fn inv_02_an_outcome_that_clears_every_stamp_takes_the_fence_away() {
    without(|rules| rules.keep_fence = false, World::from(Start::Up), "INV-02");
}

#[test]
fn inv_04_a_claim_over_a_live_lease_makes_two_holders() {
    without(|rules| rules.respect_leases = false, World::from(Start::Up), "INV-04");
}

#[test]
fn inv_32_a_takeover_that_goes_on_resumes_a_machine_that_nobody_admitted() {
    without(
        |rules| rules.takeover_only_looks = false,
        World::from(Start::Asleep),
        "INV-32",
    );
}

#[test]
fn inv_31_a_lost_suspend_is_not_taken_for_done() {
    without(|rules| rules.look_after_lost = false, World::from(Start::Up), "INV-31");
}

#[test]
fn rul_l_3_an_answer_that_a_probe_replaced_may_still_be_followed_by_its_effect() {
    // RUL-L-4 lets a probe undo the stamp and the outcome is then known; what was sent can still happen after the probe.
    let world = World::from(Start::Up);
    let way = falls(
        Protocol::new(world).without(|rules| rules.last_look_after_lost = false),
        "promise 1",
    )
    .unwrap();
    assert!(way.contains(&Action::Lose(0)), "{way:?}");
    without(|rules| rules.last_look_after_lost = false, world, "promise 1");
}

#[test]
fn rul_l_3_only_a_look_settles_and_only_as_of_its_moment() {
    without(
        |rules| rules.only_looks_settle = false,
        World::from(Start::Up),
        "promise 1",
    );
}

#[test]
fn inv_117_a_create_that_lands_after_a_confirmed_delete_is_owed_by_somebody() {
    without(
        |rules| rules.debts_outlive_delete = false,
        World::from(Start::New),
        "INV-117",
    );
    without(
        |rules| rules.debts_outlive_delete = false,
        World::from(Start::New),
        "promise 1",
    );
}

#[test]
fn rul_l_22_the_journal_follows_a_machine_to_its_new_name() {
    without(
        |rules| rules.journal_follows_name = false,
        World {
            claims: 4,
            ..World::from(Start::New)
        },
        "promise 1",
    );
}

#[test]
fn rul_l_3_a_debt_ages_from_the_end_of_its_lease() {
    without(
        |rules| rules.age_from_lease_end = false,
        World::from(Start::Up),
        "promise 1",
    );
}

// --- what the rules do not reach ----------------------------------------------------------------------------------

#[test]
fn limit_inv_118_a_kept_name_can_be_met_by_a_late_delete() {
    let world = World {
        chosen_name: true,
        faults: 3,
        ..World::from(Start::New)
    };
    for honours_epochs in [false, true] {
        let world = World {
            honours_epochs,
            ..world
        };
        let found = broken(Protocol::new(world));
        let laws: BTreeSet<_> = found.keys().copied().collect();
        assert_eq!(
            laws,
            BTreeSet::from([law("INV-118"), law("INV-21")]),
            "it is found and settled all the same"
        );
    }
}

#[test]
fn limit_inv_115_a_process_that_stops_between_guard_and_call_is_not_held_back_by_epochs_alone() {
    for honours_epochs in [false, true] {
        let world = World {
            honours_epochs,
            stops_after_guard: true,
            ..World::from(Start::Up)
        };
        let way = falls(Protocol::new(world), "promise 1").unwrap();
        // It stays away for longer than the last look waits, and the looks of the next epoch carry no epoch.
        assert!(way.contains(&Action::Wait(Age::Old)), "{way:?}");
    }
}

#[test]
fn limit_rul_30_a_boot_that_frees_leases_lets_two_calls_meet_and_keeps_promise_1() {
    let world = World {
        boot_frees: true,
        ..World::from(Start::Up)
    };
    let found = broken(Protocol::new(world));
    let laws: BTreeSet<_> = found.keys().copied().collect();
    assert_eq!(laws, BTreeSet::from([law("RUL-L-5"), law("INV-50")]));
    assert!(!laws.contains(PROMISE_1) && !laws.contains(LEDGER));
}

#[test]
fn limit_inv_60_a_row_that_was_fenced_before_its_build_deletes_what_stands_under_its_name() {
    let world = World {
        faults: 0,
        ..World::from(Start::NewBesideStranger)
    };
    let way = falls(Protocol::new(world), "INV-60").unwrap();
    assert_eq!(way[0], Action::Fence, "{way:?}");
    assert!(
        falls(
            Protocol::new(World {
                chosen_name: true,
                ..world
            }),
            "INV-60"
        )
        .is_some()
    );
}

#[test]
fn limit_inv_60_a_build_takes_what_an_earlier_one_adopted_for_its_remnant() {
    let world = World {
        faults: 1,
        fences: 0,
        chosen_name: true,
        ..World::from(Start::NewBesideStranger)
    };
    assert!(falls(Protocol::new(world), "INV-60").is_some());
}

#[test]
fn limit_inv_60_a_create_without_an_answer_adopts_whoever_has_the_name() {
    let world = World {
        faults: 2,
        fences: 0,
        ..World::from(Start::NewBesideStranger)
    };
    let way = falls(Protocol::new(world), "INV-60").unwrap();
    assert!(way.contains(&Action::Lose(0)), "{way:?}");
}

// --- what can always still happen ---------------------------------------------------------------------------------

/// Every state of a world, and from which the goal can be reached.
struct Explored {
    states: Vec<State>,
    can: Vec<bool>,
}

fn explore(world: World, goal: impl Fn(&State) -> bool) -> Explored {
    let protocol = Protocol::new(world);
    let mut places: HashMap<State, usize> = HashMap::new();
    let mut states = protocol.init_states();
    let mut back: Vec<Vec<usize>> = vec![Vec::new()];
    places.insert(states[0].clone(), 0);
    let mut at = 0;
    while at < states.len() {
        for next in protocol.next_states(&states[at].clone()) {
            let place = *places.entry(next.clone()).or_insert_with(|| {
                states.push(next);
                back.push(Vec::new());
                states.len() - 1
            });
            back[place].push(at);
        }
        at += 1;
    }
    let mut can = vec![false; states.len()];
    let mut queue: Vec<usize> = (0..states.len()).filter(|place| goal(&states[*place])).collect();
    while let Some(place) = queue.pop() {
        if !std::mem::replace(&mut can[place], true) {
            queue.extend(&back[place]);
        }
    }
    Explored { states, can }
}

#[test]
fn inv_54_every_doomed_row_can_still_end() {
    for start in [Start::New, Start::Up, Start::Asleep] {
        let world = World {
            faults: 1,
            ..World::from(start)
        };
        let seen = explore(world, |state| state.row.status.is_terminal());
        let doomed: Vec<usize> = (0..seen.states.len())
            .filter(|place| seen.states[*place].row.is_doomed() && seen.states[*place].claims_left > 0)
            .collect();
        assert!(doomed.len() > 100, "a fence has to be possible");
        for place in doomed {
            assert!(seen.can[place], "stuck: {:?}", seen.states[place]);
        }
    }
}

#[test]
fn inv_116_every_debt_can_still_be_settled() {
    for start in [Start::New, Start::Up, Start::Asleep] {
        let world = World {
            faults: 1,
            claims: 4,
            fences: 0,
            ..World::from(start)
        };
        let seen = explore(world, |state| state.debts() == 0 && state.owners.is_empty());
        let owing: Vec<usize> = (0..seen.states.len())
            .filter(|place| seen.states[*place].debts() > 0 && seen.states[*place].claims_left > 1)
            .collect();
        assert!(owing.len() > 100, "a debt has to be possible");
        for place in owing {
            assert!(seen.can[place], "stuck: {:?}", seen.states[place]);
        }
    }
}

#[test]
fn the_worlds_hold_what_the_laws_speak_of() {
    let seen = explore(
        World {
            faults: 1,
            claims: 4,
            ..World::from(Start::Up)
        },
        |_| true,
    );
    let any = |what: &dyn Fn(&State) -> bool| seen.states.iter().any(what);
    assert!(any(&|state| state.is_quiet()
        && state.row.status == MachineStatus::Ready
        && state.row.epoch > 1));
    assert!(any(
        &|state| state.is_quiet() && state.row.status == MachineStatus::Suspended
    ));
    assert!(any(
        &|state| state.is_quiet() && state.row.status == MachineStatus::Terminated
    ));
    assert!(any(&|state| state
        .operations()
        .any(|(_, row)| row.standing == Standing::Settled)));
    // A row that says one thing while the provider has another, with a debt to say so.
    assert!(any(&|state| {
        let runs = state.machine(state.row.name).is_some_and(|machine| machine.running);
        state.row.status == MachineStatus::Ready && state.row.stamp.is_none() && !runs && state.debts() > 0
    }));
}
