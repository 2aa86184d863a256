/** The style of a widget in a notebook: its CSS stays in a shadow root, and its theme follows the background. */

/** CSS of the page for a shadow root: `:root` becomes the host, `body` becomes `.page`. */
export const toShadowCss = (css: string): string =>
  css.replace(/:root(\[[^\]]*\])?/g, (_, attribute: string | undefined) => (attribute ? `:host(${attribute})` : ':host')).replace(/(^|[},\s])body(?=[\s{,])/g, '$1.page')

/** Whether a computed CSS colour is dark; null for a transparent one. */
export function isDark(colour: string): boolean | null {
  const match = /^rgba?\(([^)]*)\)$/.exec(colour)
  if (!match) return null
  const [red = 0, green = 0, blue = 0, alpha = 1] = match[1]!.split(/[\s,/]+/).map(Number)
  return alpha < 0.5 ? null : 0.2126 * red + 0.7152 * green + 0.0722 * blue < 110
}

/** Whether the nearest visible background is dark; without one, what the reader prefers. */
export function hasDarkBackground(element: Element): boolean {
  for (let ancestor: Element | null = element; ancestor; ancestor = ancestor.parentElement) {
    const dark = isDark(getComputedStyle(ancestor).backgroundColor)
    if (dark !== null) return dark
  }
  return matchMedia('(prefers-color-scheme: dark)').matches
}
