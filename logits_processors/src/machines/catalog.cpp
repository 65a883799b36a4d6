// `catalog`: the output is one entry of a catalogue or, with `items`, that many different ones with a separator between.
//
// An entry that was used must not be begun again where nothing but used ones would follow, or the mask would lead into a
// dead end. So each node counts its children below which all are used; when none is left, its parent counts it in turn.

#include <algorithm>
#include <bit>
#include <unordered_map>

#include "../catalog_store.hpp"
#include "../machine.hpp"

namespace constraints {

namespace {

constexpr std::int64_t kMostItems = 10'000;
constexpr std::size_t kLongestSeparator = 64;

class alignas(64) CatalogMachine final : public Machine {
  public:
    CatalogMachine(std::shared_ptr<const Catalog> catalog, std::int32_t items, std::vector<Token> separator,
                   std::vector<Token> ends)
        : catalog_(std::move(catalog)),
          root_(catalog_->root().place),
          is_list_(items > 1),
          ends_(std::move(ends)),
          items_(items),
          separator_(std::move(separator)) {
        reset();
    }

    void reset() override {
        remaining_ = items_;
        if (is_list_) used_.clear();
        begin_item();
    }

    void advance(Token token) override {
        switch (at_) {
            case At::block: {
                const Block block = catalog_->block(place_);
                const std::size_t child = catalog_->child(block, token);
                if (child < block.children.size() && !is_used(block, child))
                    step_down(block, child);
                else
                    leave_item(token, may_end_at(block));
                break;
            }
            case At::tail: {
                const auto [expected, last] = catalog_->tail(place_);
                if (token != expected)
                    leave_item(token, false);
                else if (last)
                    at_ = At::leaf;
                else
                    place_ += Catalog::kTailToken;
                break;
            }
            case At::leaf:
                leave_item(token, true);
                break;
            case At::separator:
                if (token != separator_[place_])
                    leave_item(token, false);
                else if (++place_ == separator_.size())
                    begin_item();
                break;
            case At::end:
            case At::lost:
                break;
        }
    }

    void mask(MaskRow& row) const override {
        row.forbid_all();
        switch (at_) {
            case At::block:
                mask_block(row);
                break;
            case At::tail:
                row.allow(catalog_->tail(place_).first);
                break;
            case At::leaf:
                allow_leaving(row);
                break;
            case At::separator:
                row.allow(separator_[place_]);
                break;
            case At::end:
                for (const Token end : ends_) row.allow(end);
                break;
            case At::lost:
                break;
        }
    }

  private:
    /// Where the last token has led. `lost`: to a place that no mask of ours leads to.
    enum class At : std::uint8_t { block, tail, leaf, separator, end, lost };

    /// What of a block is used up.
    struct Used {
        std::vector<std::uint32_t> children;
        bool entry = false;
    };
    struct Step {
        std::uint32_t block;
        std::uint32_t child;
    };

    void begin_item() {
        at_ = At::block;
        place_ = root_;
        will_read(catalog_->root_ranks().data());
        reads_.stride = sizeof(Catalog::Ranked);
        reads_.shift = 5;
        if (is_list_) path_.clear();
    }

    void step_down(const Block& block, std::size_t child) {
        if (is_list_) path_.push_back({block.place, static_cast<std::uint32_t>(child)});
        place_ = block.children[child].pointer;
        switch (block.children[child].kind()) {
            case Kind::inner:
                at_ = At::block;
                catalog_->prefetch_block(place_);
                will_read(catalog_->block_begin(place_));
                break;
            case Kind::leaf:
                at_ = At::leaf;
                __builtin_prefetch(ends_.data());
                break;
            case Kind::tail:
                at_ = At::tail;
                catalog_->prefetch_tail(place_);
                will_read(catalog_->tail_begin(place_));
                break;
        }
    }

    /// The token after an entry, or one that is out of place.
    void leave_item(Token token, bool entry_ends) {
        const bool is_end = std::find(ends_.begin(), ends_.end(), token) != ends_.end();
        if (entry_ends && remaining_ > 1 && token == separator_[0]) {
            use_item();
            --remaining_;
            at_ = At::separator;
            place_ = 1;
            if (separator_.size() == 1) begin_item();
        } else {
            at_ = is_end ? At::end : At::lost;
        }
    }

    /// Marks the entry at which the path ends, and the nodes above it that it was the last one of.
    void use_item() {
        if (at_ == At::block) used_[place_].entry = true;
        std::uint32_t node = at_ == At::block ? place_ : use_last_step();
        while (!path_.empty() && is_used_up(node)) node = use_last_step();
    }

    std::uint32_t use_last_step() {
        const Step step = path_.back();
        path_.pop_back();
        used_[step.block].children.push_back(step.child);
        return step.block;
    }

    [[nodiscard]] bool is_used_up(std::uint32_t place) const {
        const Block block = catalog_->block(place);
        const Used& used = used_.at(place);
        return used.children.size() == block.children.size() && (!block.entry_ends || used.entry);
    }

    [[nodiscard]] const Used* used_of(const Block& block) const {
        if (!is_list_ || used_.empty()) return nullptr;
        const auto found = used_.find(block.place);
        return found == used_.end() ? nullptr : &found->second;
    }

    [[nodiscard]] bool is_used(const Block& block, std::size_t child) const {
        const Used* used = used_of(block);
        return used != nullptr && std::find(used->children.begin(), used->children.end(), child) != used->children.end();
    }

    [[nodiscard]] bool may_end_at(const Block& block) const {
        const Used* used = used_of(block);
        return block.entry_ends && (used == nullptr || !used->entry);
    }

    void mask_block(MaskRow& row) const {
        const Block block = catalog_->block(place_);
        const auto count = static_cast<std::uint32_t>(block.children.size());
        if (block.cells.empty() || catalog_->header().vocabulary > row.vocabulary())
            for (const Child& child : block.children) row.allow(child.token());
        else if (place_ == root_ && count > catalog_->root_mask().size() / 8)
            // The root is where most children are, and where every item begins.
            row.allow_set(catalog_->root_mask(), count);
        else
            row.allow_cells(block.cells, count);
        if (!block.cells.empty() && place_ != root_) {
            // Where the one for a token is if none is left out before it.
            reads_.table = reinterpret_cast<std::uintptr_t>(block.cells.data()) - sizeof(Cell) * block.cells.front().index;
            reads_.stride = sizeof(Cell);
            reads_.shift = std::countr_zero(Cell::kTokens);
        }
        if (const Used* used = used_of(block))
            for (const std::uint32_t child : used->children) row.forbid(block.children[child].token());
        if (may_end_at(block)) allow_leaving(row);
    }

    void allow_leaving(MaskRow& row) const {
        if (remaining_ > 1)
            row.allow(separator_[0]);
        else
            for (const Token end : ends_) row.allow(end);
    }

    // In the order of how often they are needed: most steps read the first cache line alone.
    std::shared_ptr<const Catalog> catalog_;
    std::uint32_t root_;
    /// Of a block or in the tails; in a separator, how many of its tokens have come.
    std::uint32_t place_ = 0;
    At at_ = At::block;
    bool is_list_;
    std::int32_t remaining_ = 0;
    std::vector<Token> ends_;
    std::int32_t items_;
    std::vector<Token> separator_;
    std::unordered_map<std::uint32_t, Used> used_;
    /// From the root to where the current entry has come; kept for lists only.
    std::vector<Step> path_;
};

std::unique_ptr<Machine> make(const Arguments& arguments, const Setting& setting) {
    const std::string& name = arguments.text("name", 128);
    if (!CatalogStore::is_name(name))
        arguments.refuse("name", "is no name of a catalogue: those are letters, digits, dots, dashes and underscores.");
    std::shared_ptr<const Catalog> catalog;
    try {
        catalog = setting.catalogs.get(name);
    } catch (const CatalogError& error) {
        arguments.refuse("name", name + " " + error.what() + ".");
    }
    const std::int64_t items = arguments.has("items") ? arguments.integer("items", 1, kMostItems) : 1;
    const auto entries = static_cast<std::int64_t>(catalog->header().entries);
    if (items > entries)
        arguments.refuse("items", "the catalogue " + name + " has only " + std::to_string(entries) + " entries.");
    std::vector<Token> separator;
    if (items > 1) {
        separator = setting.encode(arguments.text("separator", kLongestSeparator));
        if (separator.empty()) arguments.refuse("separator", "is no token of this model.");
        for (const Token end : setting.ends)
            if (std::find(separator.begin(), separator.end(), end) != separator.end())
                arguments.refuse("separator", "holds a token that ends the output.");
        if (catalog->continues_with(separator[0]))
            arguments.refuse("separator", "begins with a token with which an entry of the catalogue " + name +
                                              " goes on where another one ends, so the two could not be told apart; "
                                              "choose another one.");
    } else if (arguments.has("separator")) {
        arguments.refuse("separator", "is for lists: give the number of items too.");
    }
    return std::make_unique<CatalogMachine>(std::move(catalog), static_cast<std::int32_t>(items), std::move(separator), setting.ends);
}

const Registered registered("catalog", {"name", "items", "separator"}, make);

}  // namespace

}  // namespace constraints
