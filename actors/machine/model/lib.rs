//! The lease and fence protocol, small enough to look at every state of it.
//!
//! One machine row with its journal, its provider, the requests that are on their way, and two operations at work, each
//! on a process of its own. What the domain decides in `actors/machine/{lease,outcome,settle,provision,park,wake,
//! destroy,delete}.rs` and the store writes in `src/store/machines/{lease,finish,fence}.rs` is here without anything that
//! does not matter to it: accounts, turns, policies, files. `cargo test -p fountain-model` looks at every state of small
//! worlds; `cargo run --release -p fountain-model -- --help` at larger ones.
//!
//! - **Time** is what may happen next. A process that is frozen is one that does not step; its lease lapses meanwhile
//!   ([`Action::Lapse`]), and it thaws by stepping. Two minutes and a quarter of an hour pass by [`Action::Wait`].
//! - **A request** that was sent may take effect at any later moment within ten minutes ([`Action::Land`]), or never
//!   ([`Action::Vanish`]), whoever still waits for it.
//! - **The guard** and the sending are one step, as they are one poll of a future; a world may stop in between
//!   ([`rules::World::stops_after_guard`]).
//! - **The rules** are those of rulings-lifecycle.md, and each can be taken away ([`rules::Rules`]).
//!
//! A model proves nothing about the code; it says which rules are needed and whether they suffice. Where they do not,
//! `tests/protocol.rs` holds the counterexample (its tests called `limit_…`).

pub mod laws;
pub mod owner;
pub mod provider;
pub mod rules;
pub mod state;
pub mod store;

use fountain_actors::domain::machine::{MachineStatus, Transition};
use stateright::{Model, Property};

use owner::Heard;
use provider::Answer;
use rules::{Rules, Start, World};
use state::*;

/// The protocol in a world.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    pub rules: Rules,
    pub world: World,
}

/// What can happen. Places count in the sorted lists of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A process claims the row.
    Claim(Task, u8),
    /// M15.
    Fence,
    /// An operation does its next step: guard and send, look, or commit.
    Step(usize),
    /// Its request takes effect and is answered.
    Answer(usize),
    /// Its request is refused, without effect.
    Refuse(usize),
    /// It gives up waiting; the request goes on.
    Lose(usize),
    /// Its delete is accepted; whether and when it is done is another matter (field-lessons P1).
    Accept(usize),
    LookFails(usize),
    BuildFails(usize),
    /// A request that nobody waits for takes effect.
    Land(usize),
    /// It never will.
    Vanish(usize),
    /// The process dies.
    Crash(usize),
    /// The operation is dropped; its process lives (RUL-L-5).
    Drop(usize),
    /// The lease runs out: its holder is dead, frozen, or cannot reach the database.
    Lapse,
    Renew(usize),
    Wait(Age),
    /// A process comes back and frees what the one before it held (RUL-30).
    Boot,
}

impl Protocol {
    pub const fn new(world: World) -> Self {
        Self {
            rules: Rules::ALL,
            world,
        }
    }

    /// The protocol without some of its rules.
    #[must_use]
    pub fn without(mut self, forget: impl FnOnce(&mut Rules)) -> Self {
        forget(&mut self.rules);
        self
    }

    fn start(&self) -> State {
        use MachineStatus as S;
        let World {
            start,
            claims,
            faults,
            fences,
            ..
        } = self.world;
        let (status, running) = match start {
            Start::New | Start::NewBesideStranger => (S::Pending, None),
            Start::Up => (S::Ready, Some(true)),
            Start::Asleep => (S::Suspended, Some(false)),
        };
        let mut state = State {
            row: Row {
                status,
                stamp: None,
                epoch: 0,
                lease: Lease::Free,
                owes: false,
                name: 0,
            },
            journal: [None; EPOCHS],
            provider: Provider::default(),
            requests: Vec::new(),
            owners: Vec::new(),
            claims_left: claims,
            faults_left: faults,
            fences_left: fences,
            broken: 0,
        };
        let mut machine = None;
        if let Some(running) = running {
            state.row.epoch = 1;
            machine = Some(Machine { running, maker: 1 });
            let built = Operation {
                task: Task::Build,
                name: 0,
                standing: Standing::Closed,
                age: Age::Old,
                lapsed: false,
                resumed: false,
            };
            if let Some(first) = state.journal.first_mut() {
                *first = Some(built);
            }
            if let Some(first) = state.provider.highest.first_mut().filter(|_| self.world.honours_epochs) {
                *first = 1;
            }
        }
        if start == Start::NewBesideStranger {
            machine = Some(Machine {
                running: true,
                maker: 0,
            });
        }
        if let Some(first) = state.provider.machines.first_mut() {
            *first = machine;
        }
        state
    }

    /// Takes the place of the request that this operation waits for.
    fn awaited(state: &State, slot: usize) -> Option<usize> {
        let owner = state.owners.get(slot)?;
        let is_its = |request: &Request| request.epoch == owner.epoch && request.fate == Fate::Awaited;
        state.requests.iter().position(is_its)
    }

    fn take_effect(&self, state: &mut State, place: usize) -> Answer {
        let request = state.requests.remove(place);
        // Looked at as it is before, and only if it is not refused.
        let mut after = state.clone();
        let answer = provider::apply(&mut after, &self.world, &request);
        if answer == Answer::Ok {
            laws::on_landing(state, &request);
        }
        state.provider = after.provider;
        answer
    }

    fn abandon(&self, state: &mut State, slot: usize) -> Option<Owner> {
        let gone = *state.owners.get(slot)?;
        if let Some(place) = Self::awaited(state, slot)
            && let Some(request) = state.requests.get_mut(place)
        {
            request.fate = Fate::Dropped;
        }
        state.owners.remove(slot);
        Some(gone)
    }

    /// The state after an action; None when it cannot happen.
    fn after(&self, before: &State, action: Action) -> Option<State> {
        let (rules, world) = (&self.rules, &self.world);
        let mut state = before.clone();
        let fault = |state: &mut State| -> Option<()> {
            state.faults_left = state.faults_left.checked_sub(1)?;
            Some(())
        };
        let mut by = None;
        match action {
            Action::Claim(task, name) => store::claim(&mut state, rules, task, name),
            Action::Fence => store::fence(&mut state),
            Action::Step(slot) => {
                by = state.owners.get(slot).map(|owner| owner.epoch);
                owner::step(&mut state, rules, world, slot)?;
            }
            Action::Answer(slot) => {
                let place = Self::awaited(&state, slot)?;
                let answer = self.take_effect(&mut state, place);
                owner::hear(&mut state, rules, world, slot, Heard::Answer(answer))?;
            }
            Action::Refuse(slot) => {
                fault(&mut state)?;
                let place = Self::awaited(&state, slot)?;
                state.requests.remove(place);
                owner::hear(&mut state, rules, world, slot, Heard::Answer(Answer::Refused))?;
            }
            Action::Lose(slot) | Action::Accept(slot) => {
                fault(&mut state)?;
                let place = Self::awaited(&state, slot)?;
                let accepted = matches!(action, Action::Accept(_));
                let mut request = *state.requests.get(place)?;
                if accepted {
                    request.only = Some(state.machine(request.name)?.maker);
                }
                request.fate = Fate::Stray;
                *state.requests.get_mut(place)? = request;
                let heard = if accepted {
                    Heard::Answer(Answer::Ok)
                } else {
                    Heard::Nothing
                };
                owner::hear(&mut state, rules, world, slot, heard)?;
            }
            Action::LookFails(slot) => {
                fault(&mut state)?;
                owner::look_fails(&mut state, rules, slot)?;
            }
            Action::BuildFails(slot) => {
                fault(&mut state)?;
                owner::fail_build(&mut state, slot)?;
            }
            Action::Land(place) => {
                self.take_effect(&mut state, place);
            }
            Action::Vanish(place) => {
                state.requests.remove(place);
            }
            Action::Crash(slot) => {
                fault(&mut state)?;
                self.abandon(&mut state, slot)?;
            }
            Action::Drop(slot) => {
                fault(&mut state)?;
                let gone = self.abandon(&mut state, slot)?;
                let in_flight = matches!(gone.at, At::Awaits(_) | At::Passed(_));
                if state.holds(gone.epoch) && !(in_flight && rules.lapse_in_flight) {
                    state.row.lease = Lease::Free;
                }
            }
            Action::Lapse => {
                if state.owner_of(state.row.epoch).is_some() {
                    fault(&mut state)?;
                }
                state.row.lease = Lease::Lapsed;
                let epoch = state.row.epoch;
                state.operation_mut(epoch)?.lapsed = true;
            }
            Action::Renew(slot) => {
                let epoch = state.owners.get(slot)?.epoch;
                store::renew(&mut state, epoch);
            }
            Action::Wait(to) => state = store::ages(&state, rules, to)?,
            Action::Boot => state.row.lease = Lease::Free,
        }
        state.settle_form();
        laws::on_step(before, &mut state, by, action == Action::Fence);
        (state != *before).then_some(state)
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.start()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // What follows a broken law says nothing.
        if state.broken != 0 {
            return;
        }
        for task in [Task::Build, Task::Park, Task::Wake, Task::Settle, Task::Destroy] {
            actions.extend(store::wanted(state, &self.rules, task).map(|name| Action::Claim(task, name)));
        }
        let row = &state.row;
        if state.fences_left > 0 && !row.status.is_terminal() && row.stamp != Some(Transition::Destroying) {
            actions.push(Action::Fence);
        }
        for (slot, owner) in state.owners.iter().enumerate() {
            match owner.at {
                At::Awaits(call) => {
                    actions.extend([Action::Answer(slot), Action::Lose(slot), Action::Refuse(slot)]);
                    if call == Call::Destroy {
                        actions.push(Action::Accept(slot));
                    }
                }
                At::Looks => actions.extend([Action::Step(slot), Action::LookFails(slot)]),
                At::Advances => actions.extend([Action::Step(slot), Action::BuildFails(slot)]),
                _ => actions.push(Action::Step(slot)),
            }
            actions.extend([Action::Crash(slot), Action::Drop(slot)]);
            if row.lease == Lease::Lapsed && owner.epoch == row.epoch {
                actions.push(Action::Renew(slot));
            }
        }
        for (place, request) in state.requests.iter().enumerate() {
            if request.fate != Fate::Awaited {
                actions.extend([Action::Land(place), Action::Vanish(place)]);
            }
        }
        if row.lease == Lease::Live {
            actions.push(Action::Lapse);
        }
        if self.world.boot_frees && row.lease != Lease::Free && state.owners.is_empty() {
            actions.push(Action::Boot);
        }
        actions.extend([Action::Wait(Age::Ripe), Action::Wait(Age::Old)]);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        self.after(state, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        laws::properties()
    }
}
