//! A catalogue of small environments, one of each kind of package that is easy to get wrong.

use crate::package::{Entry, Format, PLACEHOLDER, Package, PrefixMode};

/// A named environment of made packages.
#[derive(Debug, Clone)]
pub struct Kind {
    /// What it shows, in kebab-case; fit for a file name.
    pub name: &'static str,
    /// Its packages. They depend on one another where the order of installation matters.
    pub packages: Vec<Package>,
    /// The archives' format.
    pub format: Format,
}

impl Kind {
    fn new(name: &'static str, packages: impl Into<Vec<Package>>) -> Self {
        Self {
            name,
            packages: packages.into(),
            format: Format::Conda,
        }
    }
}

/// Version of [`python`]'s standard library folder: `lib/python3.11`.
pub const PYTHON_VERSION: &str = "3.11";

/// A package `python` 3.11 without an interpreter: a shell script that says how it was called.
pub fn python() -> Package {
    let script = "#!/bin/sh\necho \"made python 3.11 ran $*\"\n";
    Package::new("python", "3.11.9", "h0_made")
        .index("python_site_packages_path", "lib/python3.11/site-packages")
        .with(Entry::program("bin/python3.11", script))
        .with(Entry::symlink("bin/python3", "python3.11"))
        .with(Entry::symlink("bin/python", "python3.11"))
        .with(Entry::file("lib/python3.11/os.py", "name = 'posix'\n"))
        .with(Entry::file(
            "lib/python3.11/site-packages/README.txt",
            "Packages go here.\n",
        ))
}

/// All kinds.
pub fn all() -> Vec<Kind> {
    vec![
        plain(),
        tar_bz2(),
        noarch_python(),
        noarch_generic(),
        symlinks(),
        empty(),
        without_paths_json(),
        clobbered_by_two(),
        clobbered_by_three(),
        clobbered_symlinks(),
        clobbered_noarch_python(),
        clobbered_entry_points(),
        nested_file_first(),
        nested_directory_first(),
        prefix_text(),
        prefix_binary(),
        no_link(),
        hardlink_entry_of_a_symlink(),
        archive_hard_link(),
        odd_names(),
        large_directory(),
        modes(),
        without_about_json(),
        unlisted(),
        empty_directory(),
        link_scripts(),
        virtual_dependencies(),
    ]
}

fn plain() -> Kind {
    Kind::new(
        "plain",
        [Package::new("plain", "1.0", "0")
            .with(Entry::program("bin/hello", "#!/bin/sh\necho hello\n"))
            .with(Entry::file(
                "share/plain/data.bin",
                (0..=255).cycle().take(200_000).collect::<Vec<u8>>(),
            ))
            .with(Entry::file("share/plain/empty", ""))
            .with(Entry::file("share/plain/a/b/c/d/deep.txt", "deep\n").mtime(1_500_000_001))],
    )
}

fn tar_bz2() -> Kind {
    let package = Package::new("bzipped", "2.0", "h1234_1")
        .with(Entry::program("bin/bzipped", "#!/bin/sh\n"))
        .with(Entry::symlink("bin/alias", "bzipped"));
    Kind {
        format: Format::TarBz2,
        ..Kind::new("tar-bz2", [package])
    }
}

fn noarch_python() -> Kind {
    Kind::new(
        "noarch-python",
        [
            python(),
            Package::new("greeter", "1.2.3", "pyhd_0")
                .noarch_python()
                .depends("python >=3.8")
                .entry_point("greet = greeter.cli:main")
                .entry_point("greet-all = greeter.cli:Commands.all")
                .with(Entry::file("site-packages/greeter/__init__.py", ""))
                .with(Entry::file(
                    "site-packages/greeter/cli.py",
                    "def main():\n    print('hi')\n",
                ))
                .with(Entry::file(
                    "site-packages/greeter-1.2.3.dist-info/METADATA",
                    "Name: greeter\n",
                ))
                .with(
                    Entry::program(
                        "python-scripts/greet.sh",
                        format!("#!{PLACEHOLDER}/bin/python\n"),
                    )
                    .prefix(PrefixMode::Text),
                )
                .with(Entry::file("share/greeter/data.txt", "not moved\n")),
        ],
    )
}

fn noarch_generic() -> Kind {
    Kind::new(
        "noarch-generic",
        [Package::new("generic", "0.1", "0")
            .noarch_generic()
            .with(Entry::file("share/generic/data.txt", "any platform\n"))
            .with(Entry::file(
                "site-packages/stays.txt",
                "not noarch python\n",
            ))],
    )
}

fn symlinks() -> Kind {
    Kind::new(
        "symlinks",
        [Package::new("linked", "1.0", "0")
            .with(Entry::file("lib/libx.so.1.2", "library\n"))
            .with(Entry::symlink("lib/libx.so.1", "libx.so.1.2"))
            .with(Entry::symlink("lib/libx.so", "libx.so.1"))
            .with(Entry::symlink("lib/dangling", "no/such/file"))
            .with(Entry::symlink("lib/itself", "itself"))
            .with(Entry::file("share/real/file.txt", "in a directory\n"))
            .with(Entry::symlink("share/directory", "real"))
            .with(Entry::symlink("share/up", "../lib/libx.so.1.2"))
            .with(Entry::symlink("etc/outside", "/etc/hostname"))
            .with(Entry::symlink("share/long", "x/".repeat(120) + "end"))],
    )
}

fn empty() -> Kind {
    Kind::new("empty", [Package::new("empty", "0.1.0", "0")])
}

fn without_paths_json() -> Kind {
    Kind {
        format: Format::TarBz2,
        ..Kind::new(
            "without-paths-json",
            [Package::new("old", "0.9", "1")
                .without_paths_json()
                .with(
                    Entry::program("bin/old", format!("#!{PLACEHOLDER}/bin/sh\n"))
                        .prefix(PrefixMode::Text),
                )
                .with(
                    Entry::file("lib/old.so", c_strings(&[PLACEHOLDER])).prefix(PrefixMode::Binary),
                )
                .with(Entry::file("lib/copied.txt", "copied\n").no_link())
                .with(Entry::symlink("lib/old.so.1", "old.so"))
                .with(Entry::file("share/with space.txt", "space\n"))],
        )
    }
}

fn clobbering(name: &str, text: &str) -> Package {
    Package::new(name, "1.0", "0")
        .with(Entry::file("share/clobbered.txt", text))
        .with(
            Entry::file("share/common/also.txt", format!("also {text}"))
                .mtime(1_600_000_000 + text.len() as u64),
        )
        .with(Entry::file(
            format!("share/{name}.txt"),
            "of one package only\n",
        ))
}

fn clobbered_by_two() -> Kind {
    Kind::new(
        "clobbered-by-two",
        [
            clobbering("clobber-a", "from a\n"),
            clobbering("clobber-b", "from b, longer\n").depends("clobber-a"),
        ],
    )
}

fn clobbered_by_three() -> Kind {
    let prefixed = Entry::file("share/common/prefix.txt", format!("c {PLACEHOLDER}\n"))
        .prefix(PrefixMode::Text);
    Kind::new(
        "clobbered-by-three",
        [
            clobbering("clobber-c", "from c\n").with(prefixed),
            clobbering("clobber-b", "from b, longer\n"),
            clobbering("clobber-a", "from a, the longest\n")
                .with(Entry::file("share/common/prefix.txt", "a, plain\n"))
                .depends("clobber-b"),
        ],
    )
}

fn clobbered_symlinks() -> Kind {
    Kind::new(
        "clobbered-symlinks",
        [
            Package::new("link-a", "1.0", "0")
                .with(Entry::file("share/target-a.txt", "a\n"))
                .with(Entry::symlink("share/link", "target-a.txt"))
                .with(Entry::symlink("share/link-or-file", "target-a.txt")),
            Package::new("link-b", "1.0", "0")
                .depends("link-a")
                .with(Entry::file("share/target-b.txt", "b\n"))
                .with(Entry::symlink("share/link", "target-b.txt"))
                .with(Entry::file("share/link-or-file", "a file\n")),
        ],
    )
}

fn clobbered_noarch_python() -> Kind {
    let package = |name: &str, text: &str| {
        Package::new(name, "1.0", "pyhd_0")
            .noarch_python()
            .depends("python")
            .with(Entry::file("site-packages/shared/__init__.py", text))
            .with(Entry::file(format!("site-packages/{name}.py"), ""))
    };
    Kind::new(
        "clobbered-noarch-python",
        [
            python(),
            package("shared-a", "origin = 'a'\n"),
            package("shared-b", "origin = 'bb'\n"),
            // The same path from a package that says where it goes itself.
            Package::new("shared-c", "1.0", "0").with(Entry::file(
                "lib/python3.11/site-packages/shared/__init__.py",
                "origin = 'ccc'\n",
            )),
        ],
    )
}

/// Two packages with the same entry point. Rattler's installer does not know of this clobbering: whichever it links last
/// wins, so they are made equal but for the packages' other files.
fn clobbered_entry_points() -> Kind {
    let package = |name: &str| {
        Package::new(name, "1.0", "pyhd_0")
            .noarch_python()
            .depends("python")
            .entry_point("same = shared.cli:main")
            .entry_point(&format!("{name} = shared.cli:main"))
            .with(Entry::file(format!("site-packages/{name}.py"), ""))
    };
    Kind::new(
        "clobbered-entry-points",
        [python(), package("entry-a"), package("entry-b")],
    )
}

fn nested_file_first() -> Kind {
    Kind::new(
        "nested-file-first",
        [
            Package::new("nested-a", "1.0", "0").with(Entry::file("share/nested", "a file\n")),
            Package::new("nested-b", "1.0", "0")
                .depends("nested-a")
                .with(Entry::file("share/nested/one.txt", "in a directory\n")),
        ],
    )
}

fn nested_directory_first() -> Kind {
    Kind::new(
        "nested-directory-first",
        [
            Package::new("nested-a", "1.0", "0")
                .with(Entry::file("share/nested/one.txt", "in a directory\n")),
            Package::new("nested-b", "1.0", "0")
                .depends("nested-a")
                .with(Entry::file("share/nested", "a file\n")),
        ],
    )
}

fn prefix_text() -> Kind {
    let several =
        format!("first={PLACEHOLDER}\nsecond={PLACEHOLDER}/lib:{PLACEHOLDER}/bin\n{PLACEHOLDER}");
    let utf8 = format!("ü{PLACEHOLDER}ü\n");
    let long_shebang = format!(
        "#!{PLACEHOLDER}/libexec/{}/python3.11 -u\nprint('{PLACEHOLDER}')\n",
        "deep/".repeat(30)
    );
    Kind::new(
        "prefix-text",
        [
            python(),
            Package::new("text", "1.0", "0")
                .with(Entry::file("etc/several.conf", several).prefix(PrefixMode::Text))
                .with(Entry::file("etc/utf8.conf", utf8).prefix(PrefixMode::Text))
                .with(
                    Entry::file(
                        "etc/latin1.conf",
                        [b"\xe4\xff ", PLACEHOLDER.as_bytes(), b"\n"].concat(),
                    )
                    .prefix(PrefixMode::Text),
                )
                .with(
                    Entry::file("etc/never.conf", "declared, but not in it\n".repeat(20))
                        .prefix(PrefixMode::Text),
                )
                .with(Entry::file("etc/only.conf", PLACEHOLDER).prefix(PrefixMode::Text))
                .with(
                    Entry::file(
                        "etc/other.conf",
                        "root = /opt/anaconda1anaconda2anaconda3/x\n",
                    )
                    .placeholder(PrefixMode::Text, "/opt/anaconda1anaconda2anaconda3"),
                )
                .with(
                    Entry::program("bin/shebang", format!("#!{PLACEHOLDER}/bin/python3.11\n"))
                        .prefix(PrefixMode::Text),
                )
                .with(
                    Entry::program(
                        "bin/env-shebang",
                        format!("#!/usr/bin/env {PLACEHOLDER}/bin/python3.11\n"),
                    )
                    .prefix(PrefixMode::Text),
                )
                .with(Entry::program("bin/long-shebang", long_shebang).prefix(PrefixMode::Text))
                .with(
                    Entry::file("etc/read-only.conf", format!("{PLACEHOLDER}\n"))
                        .prefix(PrefixMode::Text)
                        .mode(0o444),
                ),
        ],
    )
}

fn prefix_binary() -> Kind {
    let lib = format!("{PLACEHOLDER}/lib");
    let share = format!("{PLACEHOLDER}/share/x");
    let twice = format!("{PLACEHOLDER}/bin:{PLACEHOLDER}/sbin");
    let wide = |unit: usize, big: bool| {
        let mut bytes = vec![0x7f; unit * 4];
        for character in format!("{PLACEHOLDER}/wide\0tail\0").bytes() {
            let mut encoded = vec![0; unit];
            encoded[if big { unit - 1 } else { 0 }] = character;
            bytes.extend(encoded);
        }
        bytes
    };
    let at_end = [b"\x00\x01\x02".as_slice(), PLACEHOLDER.as_bytes()].concat();
    Kind::new(
        "prefix-binary",
        [Package::new("binary", "1.0", "0")
            .with(
                Entry::program(
                    "bin/several",
                    c_strings(&[&lib, "unrelated", &share, PLACEHOLDER]),
                )
                .prefix(PrefixMode::Binary),
            )
            .with(
                Entry::file("lib/twice.so", c_strings(&["before", &twice, "after"]))
                    .prefix(PrefixMode::Binary),
            )
            .with(Entry::file("lib/utf16le.so", wide(2, false)).prefix(PrefixMode::Binary))
            .with(Entry::file("lib/utf16be.so", wide(2, true)).prefix(PrefixMode::Binary))
            .with(Entry::file("lib/utf32le.so", wide(4, false)).prefix(PrefixMode::Binary))
            .with(Entry::file("lib/unterminated.so", at_end).prefix(PrefixMode::Binary))
            .with(
                Entry::file("lib/never.so", c_strings(&["declared, but not in it"; 20]))
                    .prefix(PrefixMode::Binary),
            )],
    )
}

/// Something like a library: a header, strings that end with NUL, a trailer.
fn c_strings(strings: &[&str]) -> Vec<u8> {
    let mut bytes = b"\x7fELF\x02\x01\x01\x00".to_vec();
    for string in strings {
        bytes.extend_from_slice(string.as_bytes());
        bytes.push(0);
    }
    bytes.extend_from_slice(&[0xfe; 64]);
    bytes
}

fn no_link() -> Kind {
    Kind::new(
        "no-link",
        [Package::new("copied", "1.0", "0")
            .with(Entry::file("share/copied.txt", "copied, not linked\n").no_link())
            .with(
                Entry::program("bin/copied", "#!/bin/sh\n")
                    .no_link()
                    .mode(0o555),
            )
            .with(Entry::symlink("share/followed", "copied.txt").no_link())],
    )
}

fn hardlink_entry_of_a_symlink() -> Kind {
    Kind::new(
        "hardlink-entry-of-a-symlink",
        [Package::new("mislabelled", "1.0", "0")
            .with(Entry::file("lib/real.so", "library\n"))
            .with(Entry::symlink("lib/link.so", "real.so").declare("path_type", "hardlink"))],
    )
}

fn archive_hard_link() -> Kind {
    Kind::new(
        "archive-hard-link",
        [Package::new("twins", "1.0", "0")
            .with(Entry::program("bin/one", "#!/bin/sh\necho twin\n"))
            .with(Entry::hard_link("bin/two", "bin/one"))],
    )
}

fn odd_names() -> Kind {
    let long = "n".repeat(255);
    let names = [
        "with space",
        " leading and trailing ",
        "quote\"s and 'apostrophes'",
        "back\\slash",
        "new\nline",
        "tab\tand\u{7f}delete",
        "-dash",
        "*star?[x]",
        "..two dots",
        "ünïcödé-\u{1f980}",
        // The same name to a reader, composed and decomposed: two files on Linux.
        "e\u{301}",
        "\u{e9}",
        "UPPER",
        "upper",
        ".hidden",
        "trailing.",
        &long,
    ];
    let entries = names.map(|name| Entry::file(format!("share/odd/{name}"), format!("{name}\n")));
    Kind::new(
        "odd-names",
        [Package::new("odd", "1.0", "0").with_all(entries)],
    )
}

fn large_directory() -> Kind {
    let entries = (0..3_000)
        .map(|at| Entry::file(format!("share/large/file-{at:05}.txt"), format!("{at}\n")));
    Kind::new(
        "large-directory",
        [Package::new("large", "1.0", "0").with_all(entries)],
    )
}

fn modes() -> Kind {
    let modes = [
        0o400, 0o444, 0o555, 0o600, 0o640, 0o664, 0o700, 0o711, 0o755, 0o777, 0o4755, 0o2755,
        0o1755,
    ];
    let entries =
        modes.map(|mode| Entry::file(format!("share/modes/{mode:04o}"), "mode\n").mode(mode));
    let patched = Entry::file("share/modes/patched-0750", format!("{PLACEHOLDER}\n"))
        .prefix(PrefixMode::Text);
    Kind::new(
        "modes",
        [Package::new("modes", "1.0", "0")
            .with_all(entries)
            .with(patched.mode(0o750))],
    )
}

fn without_about_json() -> Kind {
    Kind::new(
        "without-about-json",
        [Package::new("undated", "1.0", "0")
            .about(None)
            .with(
                Entry::file("etc/undated.conf", format!("{PLACEHOLDER}\n"))
                    .prefix(PrefixMode::Text),
            )
            .with(Entry::file("share/dated.txt", "keeps its date\n"))],
    )
}

/// Files of the archive that the metadata does not name are not installed.
fn unlisted() -> Kind {
    Kind::new(
        "unlisted",
        [Package::new("unlisted", "1.0", "0")
            .with(Entry::file("share/listed.txt", "listed\n"))
            .with(Entry::file("share/unlisted.txt", "unlisted\n").unlisted())
            .with(
                Entry::file(b"share/not-utf8-\xff\xfe".as_slice(), "cannot be listed\n").unlisted(),
            )],
    )
}

fn empty_directory() -> Kind {
    Kind::new(
        "empty-directory",
        [Package::new("hollow", "1.0", "0")
            .with(Entry::directory("share/hollow"))
            .with(Entry::file("share/beside.txt", "beside\n"))],
    )
}

/// Link scripts are not run unless asked for; they are files like others.
fn link_scripts() -> Kind {
    let script = "#!/bin/sh\ntouch \"$PREFIX/ran\"\n";
    Kind::new(
        "link-scripts",
        [Package::new("scripted", "1.0", "0")
            .with(Entry::program("bin/.scripted-post-link.sh", script))
            .with(Entry::program("bin/.scripted-pre-unlink.sh", script))],
    )
}

/// Dependencies on virtual packages show in pixi's marker file.
fn virtual_dependencies() -> Kind {
    Kind::new(
        "virtual-dependencies",
        [Package::new("demanding", "1.0", "0")
            .depends("__glibc >=2.17,<3.0.a0")
            .depends("__unix")
            .with(Entry::file("share/demanding.txt", "demanding\n"))],
    )
}
