//! The modules of every crate use each other without cycles, and ARCHITECTURE.md shows how.
//!
//! ```text
//! cargo test --release -p falcon-testkit --test modules -- --nocapture    prints the graph
//! FALCON_UPDATE=1 cargo test --release -p falcon-testkit --test modules   writes it into ARCHITECTURE.md
//! ```
//!
//! One module uses another if its code names anything that the other defines. The name of a re-exported item is a use
//! of the module that defines the item. Re-exporting the items of its own submodules is not a use of them. Code for
//! tests does not count. Cycles are looked for between the submodules of each module, and between these and the code of
//! the module itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, File, Item, ItemMod, ItemUse, UseTree, Visibility};

/// The names of the modules from the root of the crate down to a module; empty for the root itself.
type ModulePath = Vec<String>;

/// For each node of a graph, the nodes that it uses.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// The paths that a module names and re-exports.
#[derive(Default)]
struct Module {
    /// Paths that its code names, from the root of the crate.
    named: BTreeSet<ModulePath>,
    /// Names that it re-exports, with the path of each.
    exported: BTreeMap<String, ModulePath>,
}

/// A crate: its modules, by path.
struct Crate {
    modules: BTreeMap<ModulePath, Module>,
}

impl Crate {
    fn read(folder: &Path) -> Self {
        let source = folder.join("src");
        let root = ["lib.rs", "main.rs"].map(|name| source.join(name)).into_iter().find(|path| path.is_file());
        let mut modules = BTreeMap::new();
        read_module(&root.expect("a crate has a root"), &source, Vec::new(), &mut modules);
        Self { modules }
    }

    /// The module that defines what `path` names: the deepest module of the path, after re-exports have been followed.
    fn resolve(&self, path: &[String]) -> ModulePath {
        let depth = (0..=path.len()).rev().find(|depth| self.modules.contains_key(&path[..*depth])).unwrap();
        let module = path[..depth].to_vec();
        match path.get(depth).and_then(|name| self.modules[&module].exported.get(name)) {
            Some(origin) if *origin != path[..=depth] => {
                self.resolve(&[origin.as_slice(), &path[depth + 1..]].concat())
            }
            _ => module,
        }
    }

    /// Which modules use which.
    fn uses(&self) -> BTreeSet<(ModulePath, ModulePath)> {
        let mut uses = BTreeSet::new();
        for (user, module) in &self.modules {
            uses.extend(module.named.iter().map(|path| (user.clone(), self.resolve(path))));
        }
        uses.retain(|(user, used)| user != used);
        uses
    }

    /// The graph between the submodules of `parent`, each with all that is in it, and the code of `parent` itself,
    /// which has an empty name.
    fn level(&self, parent: &[String]) -> Graph {
        let node = |path: &ModulePath| {
            path.starts_with(parent).then(|| path.get(parent.len()).cloned().unwrap_or_default())
        };
        let mut graph: Graph = self.modules.keys().filter_map(node).map(|name| (name, BTreeSet::new())).collect();
        for (user, used) in self.uses() {
            if let (Some(user), Some(used)) = (node(&user), node(&used))
                && user != used
            {
                graph.get_mut(&user).unwrap().insert(used);
            }
        }
        graph
    }
}

fn read_module(file: &Path, folder: &Path, path: ModulePath, modules: &mut BTreeMap<ModulePath, Module>) {
    let syntax: File = syn::parse_file(&fs::read_to_string(file).unwrap()).unwrap();
    let children = syntax.items.iter().filter_map(|item| match item {
        Item::Mod(module) if !for_tests(&module.attrs) => Some(module.ident.to_string()),
        _ => None,
    });
    let mut reader = Reader { path: path.clone(), children: children.collect(), module: Module::default() };
    reader.visit_file(&syntax);
    for child in &reader.children {
        let places = [folder.join(format!("{child}.rs")), folder.join(child).join("mod.rs")];
        // A module without a file of its own, `mod name { … }`, is a part of this file.
        if let Some(file) = places.into_iter().find(|path| path.is_file()) {
            read_module(&file, &folder.join(child), [&path[..], std::slice::from_ref(child)].concat(), modules);
        }
    }
    modules.insert(path, reader.module);
}

fn for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|condition| condition.is_ident("test"))
    })
}

/// Collects the paths that a file names.
struct Reader {
    path: ModulePath,
    children: Vec<String>,
    module: Module,
}

impl Reader {
    /// A path as it is written, from the root of the crate; none if it leads out of the crate.
    fn absolute(&self, segments: &[String]) -> Option<ModulePath> {
        let (first, rest) = segments.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some([&self.path, rest].concat()),
            "super" => {
                let above = segments.iter().take_while(|segment| *segment == "super").count();
                let parent = self.path.len().checked_sub(above)?;
                Some([&self.path[..parent], &segments[above..]].concat())
            }
            child if self.children.iter().any(|name| name == child) => Some([&self.path, segments].concat()),
            _ => None,
        }
    }

    fn add_named(&mut self, segments: &[String]) {
        // A single name is imported or defined in this file.
        if segments.len() > 1
            && let Some(path) = self.absolute(segments)
        {
            self.module.named.insert(path);
        }
    }

    fn import(&mut self, tree: &UseTree, before: &[String], exported: bool) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.import(&path.tree, &with(&path.ident), exported),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, before, exported)),
            UseTree::Name(name) => {
                let imported = if name.ident == "self" { before.to_vec() } else { with(&name.ident) };
                let known_as = imported.last().cloned().unwrap_or_default();
                self.imported(&imported, known_as, exported);
            }
            UseTree::Rename(rename) => self.imported(&with(&rename.ident), rename.rename.to_string(), exported),
            UseTree::Glob(_) => self.add_named(&[before, &["*".into()]].concat()),
        }
    }

    fn imported(&mut self, segments: &[String], known_as: String, exported: bool) {
        let Some(path) = self.absolute(segments) else { return };
        let from_below = path.starts_with(&self.path);
        if exported {
            self.module.exported.insert(known_as, path.clone());
        }
        if !(exported && from_below) {
            self.module.named.insert(path);
        }
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes: &[Attribute] = match item {
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Const(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            _ => &[],
        };
        if !for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !for_tests(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if !for_tests(&item.attrs) {
            self.import(&item.tree, &[], !matches!(item.vis, Visibility::Inherited));
        }
    }

    /// The path in `pub(in crate::module)` restricts visibility; it does not count as a use of the module.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.add_named(&segments);
        visit::visit_path(self, path);
    }
}

/// The nodes of a graph, each after all nodes that it uses; if that is impossible, a cycle as an error.
fn ordered(graph: &Graph) -> Result<Vec<String>, Vec<String>> {
    let (mut order, mut remaining) = (Vec::new(), graph.clone());
    while !remaining.is_empty() {
        let is_ready = |used: &BTreeSet<String>| used.iter().all(|name| !remaining.contains_key(name));
        let ready: Vec<String> =
            remaining.iter().filter(|(_, used)| is_ready(used)).map(|(name, _)| name.clone()).collect();
        if ready.is_empty() {
            return Err(cycle(&remaining));
        }
        remaining.retain(|name, _| !ready.contains(name));
        order.extend(ready);
    }
    Ok(order)
}

/// A cycle of a graph in which every node uses another.
fn cycle(graph: &Graph) -> Vec<String> {
    let mut path = vec![graph.keys().next().unwrap().clone()];
    loop {
        let next = graph[path.last().unwrap()].iter().find(|name| graph.contains_key(*name)).unwrap().clone();
        if let Some(start) = path.iter().position(|name| *name == next) {
            path.push(next);
            return path.split_off(start);
        }
        path.push(next);
    }
}

/// One line for each node: its name, and what it uses.
fn lines(graph: &Graph, order: &[String]) -> String {
    let line = |name: &String| {
        let used: Vec<&str> = graph[name].iter().map(String::as_str).filter(|name| !name.is_empty()).collect();
        match used.is_empty() {
            true => format!("  {name}\n"),
            false => format!("  {name} → {}\n", used.join(" ")),
        }
    };
    order.iter().filter(|name| !name.is_empty()).map(line).collect()
}

/// The dependencies between the crates of the workspace, without those that only their tests need.
fn crate_graph(folders: &[PathBuf]) -> Graph {
    let name = |folder: &PathBuf| folder.file_name().unwrap().to_string_lossy().into_owned();
    let names: Vec<String> = folders.iter().map(name).collect();
    let dependencies = |folder: &PathBuf| {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let section =
            manifest.split("\n[").find(|section| section.starts_with("dependencies]")).unwrap_or_default();
        let keys: Vec<&str> = section.lines().filter_map(|line| line.split(['.', ' ']).next()).collect();
        names.iter().filter(|name| keys.contains(&name.as_str())).cloned().collect()
    };
    folders.iter().map(|folder| (name(folder), dependencies(folder))).collect()
}

#[test]
fn modules_use_each_other_without_cycles_as_the_architecture_shows() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let entries = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let mut folders: Vec<PathBuf> = entries.filter(|folder| folder.join("Cargo.toml").is_file()).collect();
    folders.sort();
    let crates = crate_graph(&folders);
    let order = ordered(&crates).expect("cargo refuses cycles of crates");
    let (mut text, mut cycles) = (format!("crates\n{}", lines(&crates, &order)), Vec::new());
    for name in &order {
        let found = Crate::read(&root.join("crates").join(name));
        for parent in found.modules.keys() {
            let graph = found.level(parent);
            match ordered(&graph) {
                Err(cycle) => cycles.push(format!("{name}::{}: {}", parent.join("::"), cycle.join(" → "))),
                Ok(order) if parent.is_empty() => text += &format!("\n{name}\n{}", lines(&graph, &order)),
                Ok(_) => {}
            }
        }
    }
    println!("{text}");
    let cycles = cycles.join("\n");
    assert!(cycles.is_empty(), "cycles of modules (an empty name is the code of the parent itself):\n{cycles}");

    let path = root.join("ARCHITECTURE.md");
    let page = fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- modules -->\n```text\n", "```\n<!-- end of modules -->");
    let (before, rest) = page.split_once(begin).expect("ARCHITECTURE.md has a place for the graph");
    let (shown, after) = rest.split_once(end).expect("the graph has an end");
    if std::env::var_os("FALCON_UPDATE").is_some() {
        fs::write(&path, [before, begin, &text, end, after].concat()).unwrap();
    } else {
        assert_eq!(shown, text, "ARCHITECTURE.md is out of date: run this test with FALCON_UPDATE=1");
    }
}

/// Imports, re-exports and paths within code count as uses, and cycles of uses are found.
#[test]
fn uses_and_cycles_are_found() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("modules");
    fs::create_dir_all(folder.join("src/b")).unwrap();
    let write = |name: &str, text: &str| fs::write(folder.join("src").join(name), text).unwrap();
    write("lib.rs", "mod a;\nmod b;\npub use a::One;");
    write("a.rs", "pub struct One;\n#[cfg(test)]\nmod tests { use crate::b::Two; }");
    write("b/mod.rs", "mod inner;\npub use inner::Two;");
    write("b/inner.rs", "pub struct Two(crate::One);");
    let root = Crate::read(&folder).level(&[]);
    assert_eq!(ordered(&root).unwrap(), ["", "a", "b"], "{root:?}");
    assert!(root["b"].contains("a") && !root["b"].contains(""), "{root:?}");
    write("a.rs", "pub struct One;\nfn two() -> crate::b::Two { todo() }");
    assert_eq!(ordered(&Crate::read(&folder).level(&[])).unwrap_err(), ["a", "b", "a"]);
    // A child that uses what its parent defines, while the parent calls the child.
    write("b/mod.rs", "mod inner;\npub struct Three;\nfn f() { inner::f() }");
    write("b/inner.rs", "use super::Three;\npub fn f() {}");
    assert_eq!(ordered(&Crate::read(&folder).level(&["b".into()])).unwrap_err(), ["", "inner", ""]);
}
