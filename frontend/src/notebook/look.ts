/** How a widget looks inside a notebook: our rules touch nothing of it, and the page is as dark as what lies behind. */

/** Rules of the page as rules of a shadow root: what stood at the root stands at the host, what stood on the body on `.page`. */
export const inShadow = (css: string): string =>
  css.replace(/:root(\[[^\]]*\])?/g, (_, of: string | undefined) => (of ? `:host(${of})` : ':host')).replace(/(^|[},\s])body(?=[\s{,])/g, '$1.page')

/** Whether a colour as a browser tells it is a dark one; none where nothing of it is seen. */
export function isDark(colour: string): boolean | null {
  const found = /^rgba?\(([^)]*)\)$/.exec(colour)
  if (!found) return null
  const [red = 0, green = 0, blue = 0, alpha = 1] = found[1]!.split(/[\s,/]+/).map(Number)
  return alpha < 0.5 ? null : 0.2126 * red + 0.7152 * green + 0.0722 * blue < 110
}

/** What lies behind an element: the nearest background that is seen, else what its reader prefers. */
export function darkBehind(element: Element): boolean {
  for (let one: Element | null = element; one; one = one.parentElement) {
    const dark = isDark(getComputedStyle(one).backgroundColor)
    if (dark !== null) return dark
  }
  return matchMedia('(prefers-color-scheme: dark)').matches
}
