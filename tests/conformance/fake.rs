//! The reference adapter.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fountain_actors::fakes::{FakeClock, FakeProcess, FakeSandbox, Program, Spawn, Stdio, vocabulary};
use fountain_actors::ports::sandbox::*;

use crate::bench::{Bench, Line, line};

pub struct Fake(FakeSandbox);

impl Bench for Fake {
    async fn start() -> Self {
        let fake = FakeSandbox::new(Arc::new(FakeClock::default()));
        Self(fake.with_program(programs()))
    }

    fn adapter(&self) -> Arc<dyn SandboxAdapter> {
        Arc::new(self.0.clone())
    }

    fn name(&self, case: &str) -> String {
        format!("conformance-{}", case.replace('_', "-"))
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn capabilities(&self) -> BTreeSet<Capability> {
        use Capability as C;
        BTreeSet::from([
            C::Suspend,
            C::NetworkPolicy,
            C::Attach,
            C::PublicUrl,
            C::TerminateSession,
            C::ForceTerminateSession,
            C::CreateNew,
        ])
    }

    fn ok(&self) -> Line {
        line("emit", &["out:hello", "exit:0"])
    }

    fn fails(&self) -> Line {
        line("emit", &["out:oops", "exit:3"])
    }

    fn stays(&self) -> Line {
        line("emit", &["out:ready", "stay"])
    }

    fn drops(&self) -> Option<Line> {
        Some(line("emit", &["out:partial", "drop"]))
    }

    fn both(&self) -> Line {
        line("emit", &["out:out", "err:err"])
    }

    fn pours(&self) -> Line {
        line("pour", &[])
    }

    fn cat(&self) -> Line {
        line("cat", &[])
    }

    fn bytes(&self) -> Line {
        line("bytes", &[])
    }
}

/// The contract's vocabulary, and what its cases need beyond it.
fn programs() -> Program {
    let words = vocabulary();
    Arc::new(move |spawn: &Spawn| match spawn.command.as_str() {
        "pour" => Box::new(Pour),
        "cat" => Box::new(Cat),
        "bytes" => Box::new(Bytes),
        _ => words(spawn),
    })
}

struct Pour;

impl FakeProcess for Pour {
    fn start(&mut self, stdio: &Stdio) {
        let stdio = stdio.clone();
        tokio::spawn(async move {
            while !stdio.is_over() {
                stdio.stdout("drop");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
    }

    fn stdin(&mut self, _: &[u8], _: &Stdio) {}

    fn eof(&mut self, _: &Stdio) {}
}

struct Cat;

impl FakeProcess for Cat {
    fn start(&mut self, _: &Stdio) {}

    fn stdin(&mut self, bytes: &[u8], stdio: &Stdio) {
        stdio.stdout(bytes.to_vec());
    }

    fn eof(&mut self, stdio: &Stdio) {
        stdio.exit(0);
    }
}

struct Bytes;

impl FakeProcess for Bytes {
    fn start(&mut self, stdio: &Stdio) {
        stdio.stdout((0..=255).collect::<Vec<u8>>());
        stdio.exit(0);
    }

    fn stdin(&mut self, _: &[u8], _: &Stdio) {}

    fn eof(&mut self, _: &Stdio) {}
}

crate::suite!(Fake);
