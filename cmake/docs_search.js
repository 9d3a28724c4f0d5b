// SPDX-License-Identifier: MIT
// The site's search: finds the words of a query in the pages, their headings and the names of the reference. Also opens a page's
// contents.
//
// cmake/search_index.py appends this file to Doxygen's search.js, whose search knows only how names and titles begin, and writes
// search/index.js: giwa_index, a list of [address, title, where it is, text, kind, other titles, late], and giwa_synonyms, a list
// of [term, words that mean the same...]. cmake/docs_search_test.js runs giwa_search() without a browser.
'use strict';

// The entries that contain all words of the query, best first; if there is none, those with most of them.
function giwa_search(query, index, synonyms) {
  // Hyphens separate words. A plural finds the singular and the other way round; Korean words have endings.
  const plain = text => text.normalize('NFC').toLowerCase().replace(/(?<=[\p{L}\p{N}])-(?=[\p{L}\p{N}])/gu, ' ').replace(/\s+/g, ' ').trim();
  const pattern = words => {
    const stem = words.replace(/(?<=[a-z]{3})s$/, '').replace(/[.*+?^${}()|[\]\\\/]/g, '\\$&');
    const from = /^[\p{L}\p{N}]/u.test(words) ? '(?<![\\p{L}\\p{N}])' : '';
    const whole = /[\p{L}\p{N}]$/u.test(words) && !/\p{Script=Hangul}$/u.test(words);
    return {whole: new RegExp(from + stem + (whole ? '(?:e?s)?(?![\\p{L}\\p{N}])' : ''), 'gu'), start: new RegExp(from + stem, 'u'),
            inside: words.length > 3 ? stem : null};
  };
  // How well a text has a word or phrase: 3 as whole words, 2 at the start of a word, 1 inside a longer word.
  const quality = ({whole, start, inside}, text) =>
    text.search(whole) >= 0 ? 3 : start.test(text) ? 2 : inside !== null && text.includes(inside) ? 1 : 0;

  const filler = /^(a|an|the|how|what|is|are|do|does|can|i|to|in|on|of|for|with|and|giwa)$/;
  const words = plain(query).split(' '), telling = words.filter(word => !filler.test(word));
  const asked = (telling.length > 0 ? telling : words).join(' '), padded = ` ${asked} `;
  const alternatives = [asked];
  for (const [term, ...same] of synonyms)
    if (padded.includes(` ${term} `)) alternatives.push(...same.map(words => padded.replace(` ${term} `, ` ${words} `).trim()));
  if (!asked) return [];

  // Titles count more than text, whole words more than parts, pages more than headings, headings more than examples and names.
  const of_kind = {page: 40, heading: 10, example: 5, name: 4, member: -25};
  const points = (phrase, together, singles, {titles, where, text, kind, late}) => {
    const all = [...titles, where, text].join('\n');
    const least = Math.min(...singles.map(single => quality(single, all)));
    let best = 0;
    if (least > 0) {
      for (const title of titles) {
        const in_title = Math.min(...singles.map(single => quality(single, title)));
        const as_phrase = quality(together, title);
        const value = title === phrase ? 100 : as_phrase === 3 ? 80 : in_title === 3 ? 70 : as_phrase === 2 ? 60 : in_title > 0 ? 48 + in_title : 0;
        if (value > 0) best = Math.max(best, value + of_kind[kind] + 5 * Math.min(1, phrase.length / title.length));
      }
      const often = Math.min(9, (text.match(together.whole) ?? []).length);
      const beside = Math.min(...singles.map(single => quality(single, titles.join('\n') + '\n' + where)));
      best = Math.max(best, (beside === 3 ? 45 : often > 0 ? 30 + often : 10 * least - 5) + of_kind[kind] / 4);
    }
    return late && !(kind === 'page' && titles.includes(phrase)) ? best / 1000 : best;
  };

  for (const entry of index)
    entry.plain ??= {titles: [entry[1], ...entry[5]].map(plain), where: plain(entry[2]), text: plain(entry[3]), kind: entry[4], late: entry[6]};
  const rank = score => index.map(entry => [score(entry.plain), entry]).filter(([value]) => value > 0)
    .sort((a, b) => b[0] - a[0]).map(([, entry]) => entry);  // the sort is stable
  const phrases = alternatives.map(phrase => [phrase, pattern(phrase), phrase.split(' ').map(pattern)]);
  const found = rank(entry => Math.max(...phrases.map((phrase, i) => points(...phrase, entry) * (i === 0 ? 1 : 0.8))));
  if (found.length > 0) return found;
  const single = asked.split(' ').filter(word => word.length > 3).map(word => [word, pattern(word)]);
  return rank(entry => single.reduce((sum, [word, its]) => sum + points(word, its, [its], entry), 0));
}

if (typeof document !== 'undefined') (function () {
  const most = 40;  // results shown

  function element(name, text, parent) {
    const made = document.createElement(name);
    made.textContent = text;
    parent.append(made);
    return made;
  }

  // The text around the first word that is found, or its beginning.
  function excerpt(text, query) {
    const lower = text.toLowerCase(), places = [query, ...query.split(/\s+/)].map(word => lower.indexOf(word.toLowerCase()));
    const place = places.find(p => p >= 0) ?? 0, from = place < 50 ? 0 : lower.indexOf(' ', place - 50) + 1;
    return (from > 0 ? '… ' : '') + text.slice(from, from + 160) + (from + 160 < text.length ? ' …' : '');
  }

  function show(list, field) {
    const query = field.value.trim();
    list.replaceChildren();
    list.hidden = query === '';
    if (list.hidden) return;
    const place = field.getBoundingClientRect();
    list.style.top = place.bottom + 8 + 'px';
    list.style.maxHeight = `calc(100vh - ${place.bottom + 24}px)`;
    const found = giwa_search(query, giwa_index, giwa_synonyms);
    for (const [address, title, where, text] of found.slice(0, most)) {
      const link = element('a', '', list);
      link.href = address;
      element('b', title, link);
      element('small', where, link);
      if (text) element('span', excerpt(text, query), link);
    }
    if (found.length > most) element('p', `${found.length - most} more: another word leaves fewer`, list);
    if (found.length === 0) element('p', `Nothing has "${query}"`, list);
  }

  document.addEventListener('DOMContentLoaded', () => {
    const contents = document.querySelector('div.toc');
    contents?.querySelector('h3').addEventListener('click', () => contents.classList.toggle('open'));
    const list = element('div', '', document.body);
    list.id = 'found';
    list.hidden = true;
    const is_field = event => event.target.id === 'MSearchField';  // the menu makes a new field as the window changes
    const close = () => {
      list.hidden = true;
    };
    document.addEventListener('input', event => {
      if (!is_field(event)) return;
      if (typeof giwa_index !== 'undefined') return show(list, event.target);
      if (document.getElementById('search_index')) return;
      const script = element('script', '', document.head);
      script.id = 'search_index';
      script.onload = () => show(list, event.target);
      script.src = 'search/index.js';
    });
    document.addEventListener('keydown', event => {
      const links = [...list.querySelectorAll('a')], at = links.indexOf(document.activeElement);
      if (list.hidden || !(is_field(event) || at >= 0)) return;
      if (event.key === 'Escape') close();
      if (event.key === 'Enter' && at < 0 && links.length > 0) links[0].click();
      if (event.key === 'ArrowDown' && at + 1 < links.length) links[at + 1].focus();
      if (event.key === 'ArrowUp') (at > 0 ? links[at - 1] : document.getElementById('MSearchField')).focus();
      if (event.key.startsWith('Arrow')) event.preventDefault();
    });
    document.addEventListener('click', event => {
      if (!is_field(event) && (event.target.closest('#found a') || !list.contains(event.target))) close();
    });
    // Doxygen's own answers to the field: the query stays, and neither its list nor its choice of kinds opens.
    const focus = searchBox.OnSearchFieldFocus;
    searchBox.OnSearchFieldFocus = active => {
      if (active || document.getElementById('MSearchField').value === '') focus.call(searchBox, active);
    };
    searchBox.OnSearchFieldChange = searchBox.OnSearchSelectShow = () => false;
  });
})();
