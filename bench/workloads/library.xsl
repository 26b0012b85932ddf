<?xml version="1.0"?>
<!-- Turns the generated library into pages: keys, sorting, grouping, numbering, recursion over strings. -->
<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">
<xsl:output method="html" indent="yes"/>
<xsl:key name="by-author" match="article" use="author"/>
<xsl:key name="by-id" match="article" use="@id"/>

<xsl:template match="/">
  <html><body>
    <h1><xsl:value-of select="count(//article)"/> articles</h1>
    <xsl:call-template name="authors"/>
    <xsl:apply-templates select="library/shelf"><xsl:sort select="@name"/></xsl:apply-templates>
  </body></html>
</xsl:template>

<!-- Muenchian grouping: one row an author, with titles in order. -->
<xsl:template name="authors">
  <table>
    <xsl:for-each select="//article[generate-id() = generate-id(key('by-author', author)[1])]">
      <xsl:sort select="author"/>
      <tr><td><xsl:value-of select="author"/></td><td>
        <xsl:for-each select="key('by-author', author)">
          <xsl:sort select="title"/>
          <xsl:value-of select="concat(title, ' (', ../@name, ')')"/>
          <xsl:if test="position() != last()">, </xsl:if>
        </xsl:for-each>
      </td></tr>
    </xsl:for-each>
  </table>
</xsl:template>

<xsl:template match="shelf">
  <h2><xsl:value-of select="translate(@name, 'abcdefghijklmnopqrstuvwxyz', 'ABCDEFGHIJKLMNOPQRSTUVWXYZ')"/></h2>
  <p>Price of all: <xsl:value-of select="round(sum(article/price) * 100) div 100"/></p>
  <xsl:apply-templates select="article"><xsl:sort select="price" data-type="number" order="descending"/></xsl:apply-templates>
</xsl:template>

<xsl:template match="article">
  <xsl:variable name="words">
    <xsl:call-template name="split"><xsl:with-param name="text" select="normalize-space(abstract)"/></xsl:call-template>
  </xsl:variable>
  <div id="{@id}">
    <h3><xsl:number value="position()" format="1. "/><xsl:value-of select="title"/></h3>
    <p><xsl:copy-of select="$words"/></p>
    <xsl:apply-templates select="section"/>
    <ul><xsl:for-each select="cites">
      <li><a href="#{@id}"><xsl:value-of select="key('by-id', @id)/title"/></a></li>
    </xsl:for-each></ul>
  </div>
</xsl:template>

<xsl:template match="section">
  <h4><xsl:value-of select="@title"/></h4>
  <xsl:apply-templates/>
</xsl:template>
<xsl:template match="p"><p><xsl:apply-templates/></p></xsl:template>
<xsl:template match="em"><em><xsl:value-of select="substring-before(concat(., ' '), ' ')"/></em></xsl:template>

<!-- One element a word, by recursion: strings and result tree fragments that live for a moment. -->
<xsl:template name="split">
  <xsl:param name="text"/>
  <xsl:choose>
    <xsl:when test="contains($text, ' ')">
      <span><xsl:value-of select="substring-before($text, ' ')"/></span>
      <xsl:call-template name="split"><xsl:with-param name="text" select="substring-after($text, ' ')"/></xsl:call-template>
    </xsl:when>
    <xsl:otherwise><b><xsl:value-of select="$text"/></b></xsl:otherwise>
  </xsl:choose>
</xsl:template>
</xsl:stylesheet>
