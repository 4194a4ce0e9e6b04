//! The seam around the provider: who may call what changes a machine (RUL-38a, INV-07).

use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

fn sources(of: &str) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut open = vec![root.join(of)];
    let mut found = Vec::new();
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path.strip_prefix(root).unwrap().to_owned(), text));
            }
        }
    }
    found
}

/// Lines of `folder` that match, except in files whose path contains one of `allowed`.
fn hits(folder: &str, pattern: &str, allowed: &[&str]) -> Vec<String> {
    let pattern = Regex::new(pattern).unwrap();
    let mut hits = Vec::new();
    for (path, text) in sources(folder) {
        let shown = path.display().to_string();
        if !allowed.iter().any(|part| shown.contains(part)) {
            let lines = text.lines().filter(|line| pattern.is_match(line));
            hits.extend(lines.map(|line| format!("{shown}: {}", line.trim())));
        }
    }
    hits
}

#[test]
fn rul_38a_only_the_facade_creates_destroys_suspends_or_resumes_a_machine() {
    // The facade is handed a `Lease` or a `Fence`; its callers hold `facade`, never an adapter.
    let effect = r"(adapter|sandbox|fake)\w*(\([^)]*\))?\??\.\s*(create|destroy|suspend|resume)\(";
    assert_eq!(
        hits("actors", effect, &["machine/facade.rs", "fakes/"]),
        Vec::<String>::new()
    );
    assert_eq!(hits("src", effect, &["src/providers/"]), Vec::<String>::new());
    let bare = r"^\s*\.(destroy|suspend|resume)\(";
    assert_eq!(hits("actors", bare, &["machine/facade.rs"]), Vec::<String>::new());
    assert!(
        !hits("actors", effect, &["fakes/"]).is_empty(),
        "the pattern finds the facade"
    );
}

#[test]
fn rul_38a_claims_and_fences_are_made_in_one_place_each() {
    let claim = r"\bstore\s*\.?\s*\.(claim|renew|release)\(";
    assert_eq!(hits("actors", claim, &["machine/lease.rs"]), Vec::<String>::new());
    assert!(!hits("actors", claim, &[]).is_empty());
    let fence = r"\bstore\s*\.fence\(";
    assert_eq!(hits("actors", fence, &["machine/fence.rs"]), Vec::<String>::new());
    assert!(!hits("actors", fence, &[]).is_empty());
    assert_eq!(hits("src", r"\.(claim|fence)\(", &["src/store/"]), Vec::<String>::new());
}

#[test]
fn inv_07_the_store_knows_no_provider() {
    let provider = r"SandboxAdapter|AdapterSet|ports::sandbox";
    assert_eq!(hits("src/store", provider, &[]), Vec::<String>::new());
    assert!(!hits("actors", provider, &[]).is_empty());
}
