// Texts on the screen that are cut, as [kind, text, place]. A text may scroll vertically, but no word may be cut at the edge of a region
// or of the window, and no word or number may be broken between two lines.
() => {
  const WORD = /[\p{Script=Latin}\p{N}](?:[\p{Script=Latin}\p{N}.,'’…]*[\p{Script=Latin}\p{N}%])?/gu
  const TOLERANCE = 1.5
  const cuts = []
  const placeOf = (element) => {
    const names = []
    for (let part = element; part && part !== document.body && names.length < 4; part = part.parentElement)
      names.unshift(part.tagName.toLowerCase() + (part.id ? `#${part.id}` : '') + [...part.classList].filter((name) => !name.startsWith('svelte-')).map((name) => `.${name}`).join(''))
    return names.join(' > ')
  }
  const report = (kind, text, element) => cuts.push([kind, text.trim().slice(0, 60), placeOf(element)])
  const isHidden = (element) => element.closest('.hidden, option, script, style, noscript, textarea') !== null || !element.checkVisibility({ visibilityProperty: true })
  const wordRects = (node) => [...node.data.matchAll(WORD)].map((match) => {
    const range = document.createRange()
    range.setStart(node, match.index)
    range.setEnd(node, match.index + match[0].length)
    return { word: match[0], rects: [...range.getClientRects()].filter((rect) => rect.width > 0) }
  })
  /** The edges that cut a text: of the window, of its drawing and of the regions around it. */
  function edgesOf(element) {
    const edges = []
    const drawing = element.closest('svg')
    if (drawing && getComputedStyle(drawing).overflowX !== 'visible') edges.push({ box: drawing.getBoundingClientRect(), vertical: true })
    for (let part = drawing ?? element; part && part !== document.body; part = part.parentElement) {
      const { overflowX, overflowY, display, position } = getComputedStyle(part)
      const clips = (overflow) => overflow === 'hidden' || overflow === 'clip'
      if (display !== 'inline' && display !== 'contents' && (overflowX !== 'visible' || overflowY !== 'visible'))
        edges.push({ box: part.getBoundingClientRect(), vertical: clips(overflowY) })
      if (position === 'fixed') break
    }
    return edges
  }
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement
    if (!node.data.trim() || isHidden(element)) continue
    const range = document.createRange()
    range.selectNodeContents(node)
    if (![...range.getClientRects()].some((rect) => rect.width > 0)) continue
    if (getComputedStyle(element).textOverflow === 'ellipsis' && element.closest('[title]')?.title.includes(node.data.trim())) continue // its tooltip has the whole text
    const edges = edgesOf(element)
    for (const { word, rects } of wordRects(node)) {
      if (new Set(rects.map((rect) => Math.round(rect.top))).size > 1 && !element.closest('svg')) report('broken between lines', word, element)
      for (const rect of rects) {
        if (rect.right <= 0) continue // hidden until it is focused
        if (rect.left < -TOLERANCE || rect.right > document.documentElement.clientWidth + TOLERANCE) report('outside the window', node.data, element)
        for (const { box, vertical } of edges) {
          const isBeyond = rect.left >= box.right || rect.right <= box.left || rect.top >= box.bottom || rect.bottom <= box.top
          const isCut = rect.left < box.left - TOLERANCE || rect.right > box.right + TOLERANCE || (vertical && (rect.top < box.top - 3 || rect.bottom > box.bottom + 3))
          if (isCut && !(isBeyond && !vertical)) report('cut at an edge', node.data, element)
        }
      }
    }
  }
  for (const select of document.querySelectorAll('select')) {
    const option = select.selectedOptions[0]
    if (!select.offsetWidth || !option || isHidden(select)) continue
    const clone = select.cloneNode(false)
    Object.assign(clone.style, { width: 'auto', maxWidth: 'none', position: 'absolute', visibility: 'hidden', flex: 'none' })
    clone.append(option.cloneNode(true))
    select.parentElement.append(clone)
    if (clone.offsetWidth > select.offsetWidth + TOLERANCE) report('cut in a menu', option.textContent, select)
    clone.remove()
  }
  return [...new Set(cuts.map((cut) => JSON.stringify(cut)))].map((cut) => JSON.parse(cut))
}
