//! The contract's suite (sandbox-contract 12), once for every adapter: a case is a function over a [`Bench`], a bench is
//! one adapter with what it can run. `README.md` beside this file says which case runs where, and why one does not.
//!
//! A capability that is missing is asserted as missing; no case passes by doing nothing. Every test has a bench and a
//! machine name of its own.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a helper of a test fails as the test does"
)]

mod additional;
mod bench;
mod exec;
mod facade;
mod fake;
mod governance;
mod lifecycle;
mod runner;
mod sprites;
mod streaming;

/// Every case as a test of its own, for the bench in the module where this stands.
macro_rules! suite {
    ($bench:ty: $($room:ident :: $case:ident),* $(,)?) => {
        $(
            #[actix_web::test]
            async fn $case() {
                crate::bench::run::<$bench>(stringify!($case), crate::$room::$case).await;
            }
        )*
    };
    ($bench:ty) => {
        crate::suite! { $bench:
            lifecycle::case_01_identity,
            lifecycle::case_02_capabilities,
            lifecycle::case_03_public_url,
            lifecycle::case_04_create_new_never_adopts,
            lifecycle::case_05_create_adopts,
            lifecycle::case_06_absence_is_not_found,
            lifecycle::case_07_destroy_of_nothing_is_done,
            lifecycle::case_08_the_listing_has_it,
            lifecycle::case_09_suspend_and_resume,
            exec::case_10_exec_succeeds,
            exec::case_11_a_nonzero_code_is_data,
            streaming::case_12_output_then_one_exit,
            streaming::case_13_a_dropped_transport_is_no_exit,
            streaming::case_14_late_input_is_command_exited,
            streaming::case_15_input_and_its_end,
            streaming::case_16_stop_command_twice,
            governance::case_17_a_second_owner_replays_and_follows,
            governance::case_18_terminate_ends_one_session,
            governance::case_19_network_policy,
            governance::case_20_checkpoints,
            additional::a01_a_rebuilt_handle_does_everything,
            additional::a02_stderr_is_dropped_or_merged,
            additional::a03_no_time_dispatches_nothing,
            additional::a04_steady_output_does_not_extend_a_deadline,
            additional::a05_attach_after_the_end_replays_and_repeats_the_verdict,
            additional::a06_attach_to_an_unknown_session,
            additional::a07_attachers_do_not_see_each_others_replay,
            additional::a08_a_mebibyte_through_cat,
            additional::a09_every_byte_value,
            additional::a10_a_file_with_mode_and_parents,
            additional::a11_concurrent_creates_make_one,
            additional::a12_a_suspended_disk_comes_back,
        }
    };
}
pub(crate) use suite;
