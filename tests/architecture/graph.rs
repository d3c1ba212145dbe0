//! The graph of each room, with its circles and its upward references.
//!
//! A room is a module with modules below it. Its graph has one node for each child, with all that lies below the child,
//! and one for the code of the room's own file. A reference belongs to the smallest room that holds both of its ends, so
//! the graph of `limiter` has the references among its rooms, and that of `limiter::queue` those among its files.
//!
//! A reference leads to the module that *defines* the item, through all re-exports. `mod child;` and the re-export of
//! something below are no references. A use of a child's item in the room's own file is one, and so is the reverse.

use std::collections::{BTreeMap, BTreeSet};

use crate::Finding;
use crate::floors::Floors;
use crate::references::{Mentions, Place, Reference};
use crate::tree::{Module, ModuleId, Target, Tree};

/// The references of one room by the nodes that they join.
struct Room<'a> {
    id: ModuleId,
    edges: BTreeMap<(ModuleId, ModuleId), Vec<&'a Reference>>,
}

/// Returns every circle of every room, and every reference that looks up.
pub(crate) fn findings(tree: &Tree, mentions: &Mentions, floors: Floors<'_>) -> Vec<Finding> {
    let rooms = rooms(tree, mentions);
    let circles = rooms.iter().flat_map(|room| room.circles(tree));
    let upward = rooms.iter().flat_map(|room| room.upward(tree, floors));
    circles.chain(upward).chain(misplaced(tree, floors)).collect()
}

/// Returns the children of a room that are on no floor of it, and the names on its floors that no child has.
fn misplaced(tree: &Tree, floors: Floors<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (room, floors) in floors {
        let on_floors: BTreeSet<&str> = floors.iter().flat_map(|floor| floor.iter().copied()).collect();
        let id = tree.modules.iter().position(|module| module.name == *room);
        let children = tree.modules.iter().filter(|module| module.parent == id && id.is_some());
        let children: BTreeSet<&str> = children.map(Module::short_name).collect();
        let wrong = on_floors.symmetric_difference(&children);
        found.extend(
            wrong.map(|name| Finding { key: format!("no floor: {room}: {name}"), detail: Vec::new() }),
        );
    }
    found
}

fn rooms<'a>(tree: &Tree, mentions: &'a Mentions) -> Vec<Room<'a>> {
    let mut rooms: BTreeMap<ModuleId, Room<'a>> = BTreeMap::new();
    for reference in mentions.references.iter().filter(|reference| reference.place != Place::FrontDoor) {
        let Target::Inside(to, item) = &reference.to else { continue };
        if item.is_empty() || *to == reference.from {
            continue;
        }
        let (id, edge) = shared_room(tree, reference.from, *to);
        let room = rooms.entry(id).or_insert_with(|| Room { id, edges: BTreeMap::new() });
        room.edges.entry(edge).or_default().push(reference);
    }
    rooms.into_values().collect()
}

/// Returns the smallest room that holds both modules, and its nodes in which they lie.
fn shared_room(tree: &Tree, from: ModuleId, to: ModuleId) -> (ModuleId, (ModuleId, ModuleId)) {
    let (from, to) = (tree.ancestry(from), tree.ancestry(to));
    let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let room = from[shared - 1];
    let node = |line: &[ModuleId]| line.get(shared).copied().unwrap_or(room);
    (room, (node(&from), node(&to)))
}

impl Room<'_> {
    /// Returns the circles: sets of nodes in which each reaches each.
    fn circles(&self, tree: &Tree) -> Vec<Finding> {
        let nodes: BTreeSet<ModuleId> = self.edges.keys().flat_map(|(from, to)| [*from, *to]).collect();
        let reached: BTreeMap<_, _> = nodes.iter().map(|node| (*node, self.reached_from(*node))).collect();
        let circle_of = |node: &ModuleId| -> BTreeSet<ModuleId> {
            reached[node].iter().copied().filter(|other| reached[other].contains(node)).collect()
        };
        let circles: BTreeSet<BTreeSet<ModuleId>> = nodes.iter().map(circle_of).collect();
        circles.iter().filter(|circle| circle.len() > 1).map(|circle| self.circle(tree, circle)).collect()
    }

    fn reached_from(&self, start: ModuleId) -> BTreeSet<ModuleId> {
        let mut reached = BTreeSet::new();
        let mut open = vec![start];
        while let Some(node) = open.pop() {
            let next = self.edges.keys().filter(|(from, _)| *from == node).map(|(_, to)| *to);
            open.extend(next.filter(|to| reached.insert(*to)));
        }
        reached
    }

    fn circle(&self, tree: &Tree, circle: &BTreeSet<ModuleId>) -> Finding {
        let mut names: Vec<String> = circle.iter().map(|node| self.label(tree, *node)).collect();
        names.sort();
        let inside = self.edges.iter().filter(|((from, to), _)| circle.contains(from) && circle.contains(to));
        let mut edges: Vec<String> =
            inside.map(|(edge, references)| self.edge(tree, *edge, references)).collect();
        edges.sort();
        let room = &tree.modules[self.id].name;
        Finding { key: format!("circle: {room}: {}", names.join(", ")), detail: edges }
    }

    /// Returns the references from a lower floor to a higher one, with every place.
    fn upward(&self, tree: &Tree, floors: Floors<'_>) -> Vec<Finding> {
        let room = &tree.modules[self.id].name;
        let Some((_, floors)) = floors.iter().find(|(name, _)| name == room) else { return Vec::new() };
        let floor =
            |node: ModuleId| floors.iter().position(|floor| floor.contains(&self.label(tree, node).as_str()));
        let mut found = Vec::new();
        for ((from, to), references) in &self.edges {
            if floor(*from).zip(floor(*to)).is_some_and(|(from, to)| from < to) {
                let key = format!("upward: {room}: {} -> {}", self.label(tree, *from), self.label(tree, *to));
                let places = places(tree, references).into_iter();
                let detail = places.map(|(file, line, target)| format!("{file}:{line}: {target}")).collect();
                found.push(Finding { key, detail });
            }
        }
        found
    }

    /// Names a node: a child by its last name, the room's own code by its file.
    fn label(&self, tree: &Tree, node: ModuleId) -> String {
        let module = &tree.modules[node];
        let name = if node == self.id { module.file.rsplit('/').next() } else { Some(module.short_name()) };
        name.unwrap_or_default().to_owned()
    }

    /// Writes an edge with the number of its references and one as an example.
    fn edge(&self, tree: &Tree, (from, to): (ModuleId, ModuleId), references: &[&Reference]) -> String {
        let places = places(tree, references);
        let (file, line, target) = &places.iter().next().cloned().unwrap_or_default();
        let (from, to) = (self.label(tree, from), self.label(tree, to));
        format!("{from} -> {to}  ({} places, such as {file}:{line}: {target})", places.len())
    }
}

/// Returns the file, the line and the target of each reference.
fn places<'a>(tree: &'a Tree, references: &[&Reference]) -> BTreeSet<(&'a str, usize, String)> {
    let place =
        |it: &&Reference| (tree.modules[it.from].file.as_str(), it.line, crate::spelled(tree, &it.to));
    references.iter().map(place).collect()
}
