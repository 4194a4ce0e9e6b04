//! Processes inside that try to get out, and that get out where they may (sandbox-contract 13, egress-deny; RUL-L-113).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fountain_sprites::enclosure::{Enclosure, Enclosures, Network};
use fountain_sprites::network::{GatewaySettings, Gateways, Host, NameServers};
use fountain_sprites::policy::{Action, Policy, Rule};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use crate::inside::{LIMIT, World, sh};

const ALLOWED: &str = "api.example.com";
const OTHER: &str = "other.example.com";

fn allow(domains: &[&str]) -> Policy {
    let rule = |domain: &&str| Rule {
        domain: Some((*domain).to_owned()),
        action: Some(Action::Allow),
        include: None,
    };
    Policy {
        rules: domains.iter().map(rule).collect(),
    }
}

fn deny_all() -> Policy {
    Policy {
        rules: vec![Rule {
            domain: Some("*".to_owned()),
            action: Some(Action::Deny),
            include: None,
        }],
    }
}

/// Names of the operator's that lead to this host: the public network of these tests.
fn world(servers: NameServers) -> Option<World> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("NOT TESTED: only root may open the tun device here");
        return None;
    }
    let host = |name: &str| Host {
        name: name.to_owned(),
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        port: None,
        always: false,
    };
    let uplink = Gateways::start(GatewaySettings {
        hosts: vec![host(ALLOWED), host(OTHER)],
        servers,
    });
    let uplink = Arc::new(uplink.unwrap());
    let world = World::with(|settings| {
        settings.uplink = Some(uplink);
        settings.helper_args = vec!["tun".into()];
    });
    assert_eq!(
        world.host.facilities().network,
        Network::Gateway,
        "{:?}",
        world.host.facilities()
    );
    Some(world)
}

async fn opened(world: &World, policy: Policy) -> Arc<dyn Enclosure> {
    let mut plan = world.plan("alpha");
    plan.policy = policy;
    world.open_plan(plan).await
}

/// Serves every connection with `talk`; counts them.
async fn serve<F>(talk: impl Fn(TcpStream) -> F + Send + Sync + 'static) -> (SocketAddr, Arc<AtomicUsize>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(talk(stream));
        }
    });
    (address, count)
}

/// Reads to the end, then says how much it was and gives it back.
async fn give_back(mut stream: TcpStream) {
    let mut bytes = Vec::new();
    if stream.read_to_end(&mut bytes).await.is_ok() {
        let _ = stream.write_all(format!("{} ", bytes.len()).as_bytes()).await;
        let _ = stream.write_all(&bytes).await;
    }
}

/// Connects, sends, ends its half, and prints what comes back.
fn talk(host: &str, port: u16, words: &str) -> String {
    format!(
        "perl -MIO::Socket::INET -e 'my $s = IO::Socket::INET->new(PeerAddr => \"{host}\", PeerPort => {port}, Timeout => 60) \
         or die \"refused\"; print $s \"{words}\"; $s->flush; shutdown($s, 1); print while <$s>;'"
    )
}

/// Asks `server` for the address of `name`, and prints the code of the answer.
fn ask(server: &str, name: &str) -> String {
    format!(
        "perl -MIO::Socket::INET -e 'my $s = IO::Socket::INET->new(Proto => \"udp\", PeerAddr => \"{server}\", PeerPort => 53); \
         my $q = pack(\"n6\", 7, 256, 1, 0, 0, 0) . join(\"\", map {{ chr(length) . $_ }} split(/[.]/, \"{name}\")) . pack(\"Cnn\", 0, 1, 1); \
         send($s, $q, 0); my $i = \"\"; vec($i, fileno($s), 1) = 1; select($i, undef, undef, 10) or die \"silence\"; \
         recv($s, my $a, 512, 0); print unpack(\"x3C\", $a) & 15;'"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn egress_an_allowed_name_is_reached_with_every_byte_and_both_ends() {
    let Some(world) = world(NameServers::default()) else {
        return;
    };
    let (server, _) = serve(give_back).await;
    let sprite = opened(&world, allow(&[ALLOWED])).await;
    let said = sh(&*sprite, &talk(ALLOWED, server.port(), "hello out there")).await;
    assert_eq!(said.ok(), "15 hello out there");
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let said = sh(&*sprite, &talk(ALLOWED, closed.port(), "x")).await;
    assert!(said.stderr.contains("refused"), "{said:?}");
    sprite.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn egress_with_a_list_of_one_name_everything_else_fails() {
    let Some(world) = world(NameServers::default()) else {
        return;
    };
    let (server, connections) = serve(give_back).await;
    let datagrams = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let sprite = opened(&world, allow(&[ALLOWED])).await;
    let port = server.port();
    for target in [
        OTHER,
        "127.0.0.1",
        "10.200.0.1",
        "10.200.0.2",
        "10.200.1.2",
        "169.254.169.254",
        "10.0.0.1",
        "1.1.1.1",
        "93.184.216.34",
    ] {
        let said = sh(&*sprite, &talk(target, port, "let me out")).await;
        assert!(said.stderr.contains("refused"), "{target}: {said:?}");
    }
    for resolver in ["10.200.0.1", "8.8.8.8", "169.254.169.254"] {
        assert_eq!(sh(&*sprite, &ask(resolver, OTHER)).await.ok(), "5", "{resolver}");
        assert_eq!(
            sh(&*sprite, &ask(resolver, "secret.tunnel.example")).await.ok(),
            "5",
            "{resolver}"
        );
        assert_eq!(sh(&*sprite, &ask(resolver, ALLOWED)).await.ok(), "0", "{resolver}");
    }
    let udp = datagrams.local_addr().unwrap().port();
    let said = sh(
        &*sprite,
        &format!("bash -c 'for a in 10.200.0.1 10.200.1.2 127.0.0.1 1.1.1.1; do echo out > /dev/udp/$a/{udp}; done'"),
    )
    .await;
    said.ok();
    let six = "perl -MSocket=:DEFAULT,:addrinfo,inet_pton,pack_sockaddr_in6,AF_INET6,PF_INET6 -e 'socket(my $s, PF_INET6, SOCK_STREAM, 0) or exit 3; \
               connect($s, pack_sockaddr_in6(80, inet_pton(AF_INET6, \"2606:4700:4700::1111\"))) and print \"out\"; exit 3'";
    assert_eq!(sh(&*sprite, six).await.status.code(), Some(3));
    assert_eq!(connections.load(Ordering::Relaxed), 0, "something got out");
    // Datagrams are carried in order, so this one would come after those.
    sh(&*sprite, &format!("bash -c 'echo allowed > /dev/udp/{ALLOWED}/{udp}'"))
        .await
        .ok();
    let mut buffer = [0; 64];
    let (length, _) = tokio::time::timeout(LIMIT, datagrams.recv_from(&mut buffer))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&buffer[..length], b"allowed\n");
    sprite.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inv_29_denying_everything_denies_names_and_addresses() {
    let Some(world) = world(NameServers::default()) else {
        return;
    };
    let (server, connections) = serve(give_back).await;
    let sprite = opened(&world, deny_all()).await;
    for target in [ALLOWED, OTHER, "10.200.1.1", "1.1.1.1"] {
        let said = sh(&*sprite, &talk(target, server.port(), "x")).await;
        assert!(!said.status.success(), "{target}: {said:?}");
    }
    assert_eq!(sh(&*sprite, &ask("10.200.0.1", ALLOWED)).await.ok(), "5");
    assert_eq!(connections.load(Ordering::Relaxed), 0);
    sprite.close().await;
}

/// A name server that says the same of every name.
async fn liar(addresses: &'static [[u8; 4]]) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 512];
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
            let mut answer = buffer[..length].to_vec();
            answer[2] |= 0x80;
            answer[7] = u8::try_from(addresses.len()).unwrap();
            // No additional records: what follows the question is ours.
            let question = answer[12..].iter().position(|byte| *byte == 0).unwrap() + 12 + 5;
            answer.truncate(question);
            answer[11] = 0;
            for address in addresses {
                answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
                answer.extend_from_slice(address);
            }
            socket.send_to(&answer, from).await.unwrap();
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn egress_an_allowed_name_that_points_inside_leads_nowhere() {
    let liar = liar(&[[10, 0, 0, 1], [169, 254, 169, 254], [192, 168, 1, 1]]).await;
    let Some(world) = world(NameServers::new(vec![liar])) else {
        return;
    };
    let (server, connections) = serve(give_back).await;
    let sprite = opened(&world, allow(&["rebinding.example.com"])).await;
    let names = sh(&*sprite, "getent ahostsv4 rebinding.example.com").await.ok();
    assert!(names.contains("10.0.0.1"), "{names}");
    let said = sh(&*sprite, &talk("rebinding.example.com", server.port(), "x")).await;
    assert!(said.stderr.contains("refused"), "{said:?}");
    assert_eq!(connections.load(Ordering::Relaxed), 0);
    sprite.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rul_l_113_a_new_policy_cuts_what_it_forbids_before_it_answers() {
    let Some(world) = world(NameServers::default()) else {
        return;
    };
    let (told, mut cut) = tokio::sync::mpsc::channel(1);
    let (server, _) = serve(move |mut stream| {
        let told = told.clone();
        async move {
            stream.write_all(b"ready\n").await.unwrap();
            let mut rest = Vec::new();
            let ended = stream.read_to_end(&mut rest).await;
            told.send((ended.is_err(), rest)).await.unwrap();
        }
    })
    .await;
    let sprite = opened(&world, allow(&[ALLOWED])).await;
    let script = format!(
        "bash -c 'exec 3<>/dev/tcp/{ALLOWED}/{}; read line <&3; echo $line > $HOME/seen; cat <&3; echo gone'",
        server.port()
    );
    let running = tokio::spawn({
        let sprite = Arc::clone(&sprite);
        async move { sh(&*sprite, &script).await }
    });
    loop {
        if sh(&*sprite, "grep -s ready $HOME/seen").await.status.success() {
            break;
        }
    }
    sprite.set_policy(allow(&[OTHER])).await.unwrap();
    assert!(running.await.unwrap().stdout.contains("gone"));
    let (_, rest) = tokio::time::timeout(LIMIT, cut.recv()).await.unwrap().unwrap();
    assert_eq!(rest, b"");
    let said = sh(&*sprite, &talk(ALLOWED, server.port(), "x")).await;
    assert!(!said.status.success());
    sprite.set_policy(Policy::default()).await.unwrap();
    assert_eq!(sh(&*sprite, &ask("10.200.0.1", ALLOWED)).await.ok(), "0");
    sprite.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_and_large_flows_arrive_whole() {
    const BYTES: usize = 100_000_000;
    let Some(world) = world(NameServers::default()) else {
        return;
    };
    let (server, _) = serve(|mut stream| async move {
        let piece = vec![b'x'; 100_000];
        for _ in 0..BYTES / piece.len() {
            if stream.write_all(&piece).await.is_err() {
                return;
            }
        }
    })
    .await;
    let (echo, connections) = serve(give_back).await;
    let sprite = opened(&world, allow(&[ALLOWED])).await;
    let began = tokio::time::Instant::now();
    let down = format!("bash -c 'exec 3<>/dev/tcp/{ALLOWED}/{}; wc -c <&3'", server.port());
    assert_eq!(sh(&*sprite, &down).await.ok(), BYTES.to_string());
    eprintln!("down: {:.0} MB/s", BYTES as f64 / 1e6 / began.elapsed().as_secs_f64());
    let many = format!(
        "perl -MIO::Socket::INET -e 'my @s; for (1..200) {{ my $s = IO::Socket::INET->new(PeerAddr => \"{ALLOWED}\", PeerPort => {}, Timeout => 60) or die \"refused\"; \
         print $s \"n$_\"; $s->flush; push @s, $s }} for (@s) {{ shutdown($_, 1) }} my $n = 0; for my $s (@s) {{ my $l = <$s>; $n++ if $l =~ /^\\d+ n\\d+$/ }} print $n;'",
        echo.port()
    );
    assert_eq!(sh(&*sprite, &many).await.ok(), "200");
    assert_eq!(connections.load(Ordering::Relaxed), 200);
    sprite.close().await;
}
