//! What the end of a process means for its turn (lifecycle 6.7, RUL-39, RUL-40 of the lifecycle rulings, RUL-2).
//!
//! A pure table. An exit code is a verdict of the process; a closed transport is none, and ends the attachment only.

use super::rows::crash_signal;
use crate::domain::turn::{Ending, TurnStatus};
use crate::domain::{Moment, TurnId};

/// How the connection stands when the end arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// `session/prompt` of this turn was written (RUL-39).
    pub prompt_written: bool,
    /// The turn was given to an idle connection, which certainly has not taken its prompt.
    pub is_untouched: bool,
    /// The process has said something on stdout.
    pub has_spoken: bool,
    /// It was relaunched for this turn once already.
    pub relaunched: bool,
    /// The provider can attach to a running session.
    pub can_attach: bool,
}

/// What ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Exit(i64),
    /// The attachment ended without a verdict.
    Lost,
}

/// What follows for the turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Course {
    /// The turn is over.
    Over(Verdict),
    /// Spawn again for the same turn: an idle connection was gone before it took the prompt.
    SpawnFresh,
    /// Spawn again, once, and say why.
    Relaunch(&'static str),
    /// Attach again inside the window (RUL-37, RUL-44a).
    Reattach,
}

/// The ending in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub status: TurnStatus,
    pub reason: Option<&'static str>,
    pub message: Option<String>,
    pub exit_code: Option<i64>,
}

/// The table.
pub fn course(standing: Standing, end: End) -> Course {
    match end {
        _ if standing.is_untouched && !standing.prompt_written => Course::SpawnFresh,
        End::Lost if standing.can_attach => Course::Reattach,
        End::Lost => Course::Over(Verdict {
            status: TurnStatus::Failed,
            reason: Some("connection_lost"),
            message: Some("the connection to the sandbox was lost and this provider cannot attach again".into()),
            exit_code: None,
        }),
        End::Exit(code) => exited(standing, code),
    }
}

fn exited(standing: Standing, code: i64) -> Course {
    if let Some(signal) = crash_signal(code)
        && !standing.has_spoken
        && !standing.relaunched
    {
        return Course::Relaunch(signal);
    }
    let signal = crash_signal(code).map(|signal| format!("the agent's process was ended by {signal}"));
    let verdict = match (standing.prompt_written, code) {
        (false, _) => Verdict {
            status: TurnStatus::Failed,
            reason: Some("agent_exited_before_prompt"),
            message: Some(signal.unwrap_or_else(|| {
                format!("the agent's process exited with code {code} before it took the prompt; see its stderr")
            })),
            exit_code: Some(code),
        },
        (true, 0) => Verdict {
            status: TurnStatus::Completed,
            reason: None,
            message: None,
            exit_code: Some(0),
        },
        (true, _) => Verdict {
            status: TurnStatus::Failed,
            reason: Some("agent_exited"),
            message: Some(signal.unwrap_or_else(|| format!("the agent's process exited with code {code}"))),
            exit_code: Some(code),
        },
    };
    Course::Over(verdict)
}

impl Verdict {
    /// As the store takes it.
    pub fn ending(self, turn_id: TurnId, at: Moment) -> Ending {
        let mut ending = Ending::failed(turn_id, self.reason.unwrap_or_default(), at);
        ending.status = self.status;
        ending.reason = self.reason.map(str::to_owned);
        ending.message = self.message;
        ending.exit_code = self.exit_code;
        ending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMPTED: Standing = Standing {
        prompt_written: true,
        is_untouched: false,
        has_spoken: true,
        relaunched: false,
        can_attach: true,
    };

    fn status(course: Course) -> (TurnStatus, Option<&'static str>) {
        match course {
            Course::Over(verdict) => (verdict.status, verdict.reason),
            other => panic!("{other:?} is no ending"),
        }
    }

    #[test]
    fn t2_exit_0_completes_a_turn_whose_prompt_was_written() {
        assert_eq!(status(course(PROMPTED, End::Exit(0))), (TurnStatus::Completed, None));
    }

    #[test]
    fn t3_any_other_code_fails_it() {
        for code in [1, 2, 126, 127, 137, 143, 255] {
            assert_eq!(
                status(course(PROMPTED, End::Exit(code))),
                (TurnStatus::Failed, Some("agent_exited"))
            );
        }
    }

    #[test]
    fn rul_39_an_exit_before_the_prompt_is_a_failure_even_with_code_0() {
        let standing = Standing {
            prompt_written: false,
            ..PROMPTED
        };
        for code in [0, 1] {
            assert_eq!(
                status(course(standing, End::Exit(code))),
                (TurnStatus::Failed, Some("agent_exited_before_prompt"))
            );
        }
    }

    #[test]
    fn r_96_a_crash_before_any_output_is_relaunched_once() {
        let fresh = Standing {
            prompt_written: false,
            has_spoken: false,
            ..PROMPTED
        };
        assert_eq!(course(fresh, End::Exit(139)), Course::Relaunch("SIGSEGV"));
        let again = Standing {
            relaunched: true,
            ..fresh
        };
        assert_eq!(status(course(again, End::Exit(139))).0, TurnStatus::Failed);
        let spoken = Standing {
            has_spoken: true,
            ..fresh
        };
        assert_eq!(status(course(spoken, End::Exit(139))).0, TurnStatus::Failed);
        assert_eq!(
            status(course(fresh, End::Exit(137))).0,
            TurnStatus::Failed,
            "a flat 137 is never relaunched"
        );
    }

    #[test]
    fn r_86_a_reused_connection_that_is_gone_means_a_fresh_spawn() {
        let standing = Standing {
            is_untouched: true,
            prompt_written: false,
            ..PROMPTED
        };
        assert_eq!(course(standing, End::Lost), Course::SpawnFresh);
        assert_eq!(course(standing, End::Exit(0)), Course::SpawnFresh);
    }

    #[test]
    fn rul_l_40_a_lost_stream_is_not_a_lost_turn() {
        assert_eq!(course(PROMPTED, End::Lost), Course::Reattach);
        let standing = Standing {
            can_attach: false,
            ..PROMPTED
        };
        assert_eq!(
            status(course(standing, End::Lost)),
            (TurnStatus::Failed, Some("connection_lost"))
        );
    }
}
