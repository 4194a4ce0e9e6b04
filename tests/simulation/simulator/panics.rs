//! Panics of a run: the product catches some of them, and none may happen unless it was planned.

use std::cell::RefCell;
use std::sync::Once;

thread_local! {
    static HEARD: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

static LISTENING: Once = Once::new();

/// From now on panics of this thread are kept instead of printed.
pub fn listen() {
    LISTENING.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            // Actors that are dropped before they started say so while a run is taken down (DESIGN 9).
            let what = info.to_string();
            let _ = HEARD.try_with(|heard| heard.borrow_mut().push(what));
        }));
    });
    let _ = heard();
}

/// What was heard on this thread since the last question.
pub fn heard() -> Vec<String> {
    HEARD.with(|heard| std::mem::take(&mut *heard.borrow_mut()))
}
