// `no_repeat_ngram`: no sequence of `size` generated tokens comes twice. The prompt does not count.

#include <unordered_map>

#include "../machine.hpp"

namespace constraints {

namespace {

class NoRepeatNgram final : public Machine {
  public:
    explicit NoRepeatNgram(std::size_t size) : before_(size - 1) {}

    void reset() override {
        tokens_.clear();
        followed_.clear();
    }

    void advance(Token token) override {
        if (tokens_.size() >= before_) followed_[context()].push_back(static_cast<std::uint32_t>(tokens_.size()));
        tokens_.push_back(token);
    }

    void mask(MaskRow& row) const override {
        row.allow_all();
        if (tokens_.size() < before_) return;
        const auto places = followed_.find(context());
        if (places == followed_.end()) return;
        for (const std::uint32_t place : places->second)
            // Two contexts may share a hash.
            if (std::equal(tokens_.end() - static_cast<std::ptrdiff_t>(before_), tokens_.end(),
                           tokens_.begin() + static_cast<std::ptrdiff_t>(place - before_)))
                row.forbid(tokens_[place]);
    }

  private:
    /// A hash of the last `before_` tokens.
    [[nodiscard]] std::uint64_t context() const {
        std::uint64_t hash = 0x9e3779b97f4a7c15;
        for (std::size_t index = tokens_.size() - before_; index < tokens_.size(); ++index) {
            hash = (hash ^ tokens_[index]) * 0xff51afd7ed558ccd;
            hash ^= hash >> 32;
        }
        return hash;
    }

    std::size_t before_;
    std::vector<Token> tokens_;
    /// By the hash of a context: where in `tokens_` stands what has followed it.
    std::unordered_map<std::uint64_t, std::vector<std::uint32_t>> followed_;
};

std::unique_ptr<Machine> make(const Arguments& arguments, const Setting&) {
    return std::make_unique<NoRepeatNgram>(static_cast<std::size_t>(arguments.integer("size", 1, 64)));
}

const Registered registered("no_repeat_ngram", {"size"}, make);

}  // namespace

}  // namespace constraints
