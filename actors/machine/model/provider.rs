//! The provider: what a request does when it arrives, which may be long after it was sent.

use crate::rules::World;
use crate::state::{Call, Machine, Request, State};

/// What the provider says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    Ok,
    /// A create met a machine of this name.
    Exists,
    /// Certainly without effect.
    Refused,
    /// A higher epoch was seen under this name (RUL-L-2).
    Stale,
}

/// Lets one request take effect.
pub fn apply(state: &mut State, world: &World, request: &Request) -> Answer {
    let name = usize::from(request.name);
    if world.honours_epochs
        && let Some(highest) = state.provider.highest.get_mut(name)
    {
        if request.epoch < *highest {
            return Answer::Stale;
        }
        *highest = request.epoch;
    }
    let Some(place) = state.provider.machines.get_mut(name) else {
        return Answer::Refused;
    };
    match (request.call, place.as_mut()) {
        (Call::Create, Some(_)) => Answer::Exists,
        (Call::Create, None) => {
            *place = Some(Machine {
                running: true,
                maker: request.epoch,
            });
            Answer::Ok
        }
        (Call::Destroy, Some(machine)) if request.only.is_some_and(|maker| maker != machine.maker) => Answer::Refused,
        // Deleting what is not there is done.
        (Call::Destroy, _) => {
            *place = None;
            Answer::Ok
        }
        (Call::Suspend | Call::Resume, None) => Answer::Refused,
        (call, Some(machine)) => {
            machine.running = call == Call::Resume;
            Answer::Ok
        }
    }
}
