//! From the paths that a server assumes to the directory of a sandbox (runner-protocol 6).
//!
//! Trusted mode: nothing here confines. `..` leaves the sandbox and absolute paths are the machine's, because the agent
//! runs as the user anyway. Only the *name* of a sandbox is strict, since it becomes a directory under the root.

use std::path::{Component, Path, PathBuf};

/// The home directory that a server assumes.
pub const HOME: &str = "/home/sprite";

/// Whether a name may be a directory directly under the root.
pub fn is_sandbox_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0'])
}

/// The file or directory that `path` means in the sandbox at `directory`.
pub fn map_path(directory: &str, path: &str) -> PathBuf {
    let inside = match path {
        "" | "~" | HOME => "",
        _ => match path
            .strip_prefix(HOME)
            .and_then(|rest| rest.strip_prefix('/'))
            .or_else(|| path.strip_prefix("~/"))
        {
            Some(rest) => rest,
            None if path.starts_with('/') => return PathBuf::from(path),
            None => path,
        },
    };
    // A rest that begins with a slash (`~//x`) would replace the directory in a join.
    clean(&Path::new(directory).join(inside.trim_start_matches('/')))
}

/// A program or argument, with every mention of the assumed home replaced: also inside a shell script.
pub fn map_arg(directory: &str, argument: &str) -> String {
    argument.replace(HOME, directory)
}

/// Removes `.`, `..` and doubled slashes by their text alone; an absolute path cannot climb over its root.
fn clean(path: &Path) -> PathBuf {
    let mut cleaned = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => drop(cleaned.pop()),
            other => cleaned.push(other),
        }
    }
    cleaned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rp_v41_paths_map_into_the_sandbox() {
        for (path, mapped) in [
            ("/home/sprite", "/sb"),
            ("/home/sprite/.env", "/sb/.env"),
            ("~", "/sb"),
            ("~/x", "/sb/x"),
            ("rel/path", "/sb/rel/path"),
            ("/tmp/other", "/tmp/other"),
            ("", "/sb"),
        ] {
            assert_eq!(map_path("/sb", path), Path::new(mapped), "{path:?}");
        }
    }

    #[test]
    fn mapped_paths_are_cleaned_and_not_confined() {
        for (path, mapped) in [
            ("~/a/../b/./c", "/sb/b/c"),
            ("../x", "/x"),
            ("../../../x", "/x"),
            ("~//etc/passwd", "/sb/etc/passwd"),
            ("/home/sprite//x", "/sb/x"),
            ("/home/sprite2/x", "/home/sprite2/x"),
            ("~user/x", "/sb/~user/x"),
        ] {
            assert_eq!(map_path("/sb", path), Path::new(mapped), "{path:?}");
        }
    }

    #[test]
    fn rp_v40_every_mention_of_home_in_an_argument_is_replaced() {
        let script = "bin=/home/sprite/.local/bin/x && cd /home/sprite";
        assert_eq!(map_arg("/sb", script), "bin=/sb/.local/bin/x && cd /sb");
        assert_eq!(map_arg("/sb", "/home/sprite2"), "/sb2");
        assert_eq!(map_arg("/sb", "~/x"), "~/x");
    }

    #[test]
    fn rp_v06_names_that_would_leave_the_root_are_refused() {
        for name in ["../escape", ".x", "a/b", "", ".", "..", "a\\b", "a\0b"] {
            assert!(!is_sandbox_name(name), "{name:?}");
        }
        assert!(is_sandbox_name("runner-0f0e0d0c0b0a49088706050403020100-1a2b3c4d"));
    }
}
